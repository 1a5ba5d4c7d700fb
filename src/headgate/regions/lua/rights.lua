-- rights.lua -- grants from other regions to this one, and the epoch of the store.
--
-- KEYS[1]  epoch    string: the id of the store's epoch, ':' and when it began, in us
-- KEYS[2]  granted  hash of one window: 'units:' and a key -> units granted to it, 'ask:' and an id -> 1; for display
--                   also 'from:' or 'to:', a region, ':' and a key -> units that the region has given, or was given
-- ARGV[1]  an id for an epoch, if there is none yet
-- ARGV[2]  a key, or '' for none
-- ARGV[3]  the epoch that a grant is for, or '' to record none
-- ARGV[4]  the id of the ask that it answers    ARGV[5]  its units    ARGV[6]  how long to keep it, in ms
-- ARGV[7]  the region that gave it; without an epoch, the region that was given the units
-- Returns  {now_us, epoch, the units granted to the key}
--
-- An id counts once, and only in the epoch that it is for.
local time = redis.call('TIME')
local now = string.format('%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2]))
local epoch = redis.call('GET', KEYS[1])
if not epoch then
    epoch = ARGV[1] .. ':' .. now
    redis.call('SET', KEYS[1], epoch)
end
if ARGV[2] == '' then
    return { now, epoch, '0' }
end
local field = 'units:' .. ARGV[2]
if ARGV[3] ~= '' and ARGV[3] == string.match(epoch, '^[^:]*') then
    if redis.call('HSETNX', KEYS[2], 'ask:' .. ARGV[4], 1) == 1 then
        redis.call('HINCRBY', KEYS[2], field, ARGV[5])
        redis.call('HINCRBY', KEYS[2], 'from:' .. ARGV[7] .. ':' .. ARGV[2], ARGV[5])
        redis.call('PEXPIRE', KEYS[2], ARGV[6])
    end
elseif ARGV[3] == '' and ARGV[7] ~= '' then
    redis.call('HINCRBY', KEYS[2], 'to:' .. ARGV[7] .. ':' .. ARGV[2], ARGV[5])
    redis.call('PEXPIRE', KEYS[2], ARGV[6])
end
return { now, epoch, redis.call('HGET', KEYS[2], field) or '0' }
