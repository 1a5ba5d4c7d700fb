-- agree.lua -- replace the choice of a scope, if it still has the expected epoch.
--
-- KEYS[1]  agreed  hash: scope -> epoch:choice     KEYS[2]  meta  hash: epoch, revision, agreed
-- ARGV[1]  scope   ARGV[2]  the expected epoch, 0 for none
-- ARGV[3]  epoch:choice to store                   ARGV[4]  the maximum number of scopes
-- Returns  what is stored now
--
-- A node that missed the answer proposes again: by then the epoch differs, and nothing changes.
local time = redis.call('TIME')
local stored = redis.call('HGET', KEYS[1], ARGV[1])
local epoch = stored and string.match(stored, '^%d+') or '0'
if epoch ~= ARGV[2] then
    return stored or ''
end
if not stored and #redis.call('HGETALL', KEYS[1]) / 2 >= tonumber(ARGV[4]) then
    redis.call('DEL', KEYS[1]) -- It is full of deleted rules; nodes propose again what they use.
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
redis.call('HSETNX', KEYS[2], 'epoch', time[1] .. '.' .. time[2])
redis.call('HINCRBY', KEYS[2], 'agreed', 1)
redis.call('PEXPIRE', KEYS[1], 86400000)
redis.call('PEXPIRE', KEYS[2], 86400000)
return ARGV[3]
