-- lead.lua -- elect the node that reports to another region.
--
-- KEYS[1]  leader  string: the elected node, until its term ends
-- KEYS[2]  meta    hash, as in merge.lua
-- ARGV[1]  node    ARGV[2]  the term in ms    ARGV[3]  region
-- Returns  1 if it is this node, else 0
local leader = redis.call('GET', KEYS[1])
if leader and leader ~= ARGV[1] then
    return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('HSET', KEYS[2], 'shipper:' .. ARGV[3], ARGV[1])
return 1
