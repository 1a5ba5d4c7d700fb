-- leave.lua -- forget a node at once; its counts are kept, and its last seconds stay readable.
--
-- KEYS[1]  nodes    KEYS[2]  sheets      both as in exchange.lua
-- ARGV[1]  node
-- Returns  whether the node was known
redis.call('HDEL', KEYS[2], 'blocks:' .. ARGV[1], 'top:' .. ARGV[1], 'figures:' .. ARGV[1])
return redis.call('HDEL', KEYS[1], ARGV[1])
