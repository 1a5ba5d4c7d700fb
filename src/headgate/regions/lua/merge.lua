-- merge.lua -- keep the larger total of each counter.
--
-- Same as counters.py:Replica.merge(); a test runs both on the same messages.
--
-- KEYS[1]  totals   hash: counter -> total
-- KEYS[2]  changed  sorted set: counter -> number of its last change
-- KEYS[3]  ends     sorted set: counter -> when it stops counting, in us
-- KEYS[4]  meta     hash: epoch, changes, heard:region, taken:region, shipper:region
-- ARGV[1]  the region that the message is from, or ''
-- ARGV[2]  an epoch, if there is none yet
-- ARGV[3]… triples: counter, total, when it stops counting
-- Returns  {now_us, meta as returned by HGETALL, the growth of the counter for each triple}
--
-- Everything written is absolute, so running this again with the same arguments changes nothing.
local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now, week_ms = string.format('%.0f', now_us), 604800000

local over = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, 1000)
for _, counter in ipairs(over) do
    redis.call('HDEL', KEYS[1], counter)
    redis.call('ZREM', KEYS[2], counter)
    redis.call('ZREM', KEYS[3], counter)
end

redis.call('HSETNX', KEYS[4], 'epoch', ARGV[2])
if ARGV[1] ~= '' then
    redis.call('HSET', KEYS[4], 'heard:' .. ARGV[1], now)
end
local grown, last_us = {}, 0
for at = 3, #ARGV, 3 do
    local counter, total, end_us = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
    local known = tonumber(redis.call('HGET', KEYS[1], counter) or '0')
    local growth = 0
    if end_us > now_us and total > known then -- An expired counter may have been known and dropped.
        growth = total - known
        redis.call('HSET', KEYS[1], counter, ARGV[at + 1])
        redis.call('ZADD', KEYS[2], redis.call('HINCRBY', KEYS[4], 'changes', 1), counter)
        redis.call('ZADD', KEYS[3], ARGV[at + 2], counter)
        last_us = math.max(last_us, end_us)
    end
    grown[#grown + 1] = growth
end
-- Unused keys expire: after a year at most, the length of the longest window.
local ttl_ms = math.max(week_ms, math.ceil((last_us - now_us) / 1000) + week_ms)
for at = 1, 4 do
    if redis.call('PTTL', KEYS[at]) < ttl_ms - 86400000 then
        redis.call('PEXPIRE', KEYS[at], string.format('%.0f', ttl_ms))
    end
end
return { now, redis.call('HGETALL', KEYS[4]), grown }
