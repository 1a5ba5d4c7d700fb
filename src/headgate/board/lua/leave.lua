-- leave.lua -- forget a node at once; what it has counted stays counted.
--
-- KEYS[1]  nodes    KEYS[2]  counts    KEYS[3]  sheets      all as in exchange.lua
-- ARGV[1]  node
-- Returns  whether the node was there
local counted = redis.call('HGET', KEYS[2], ARGV[1])
local requests, denied = string.match(counted or '[0,0', '^%[(%d+),(%d+)')
redis.call('HINCRBY', KEYS[2], 'gone_requests', requests or 0)
redis.call('HINCRBY', KEYS[2], 'gone_denied', denied or 0)
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[3], 'blocks:' .. ARGV[1], 'top:' .. ARGV[1])
return redis.call('HDEL', KEYS[1], ARGV[1])
