-- change.lua -- store or remove an operator's setting.
--
-- KEYS[1]  kept  hash: name -> value        KEYS[2]  ends  sorted set: name -> until_us
-- KEYS[3]  meta  hash: epoch, revision
-- ARGV[1]  name     ARGV[2]  value, or '' to remove it     ARGV[3]  until_us, or '' if it does not expire
-- Returns  the previous value, or false
local time = redis.call('TIME')
local before = redis.call('HGET', KEYS[1], ARGV[1])
if ARGV[2] == '' then
    redis.call('HDEL', KEYS[1], ARGV[1])
else
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
end
if ARGV[2] ~= '' and ARGV[3] ~= '' then
    redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
else
    redis.call('ZREM', KEYS[2], ARGV[1])
end
redis.call('HSETNX', KEYS[3], 'epoch', time[1] .. '.' .. time[2])
redis.call('HINCRBY', KEYS[3], 'revision', 1)
redis.call('PEXPIRE', KEYS[3], 86400000)
return before
