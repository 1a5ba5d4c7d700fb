-- exchange.lua -- bring one node's part of the board, and take everybody's along.
--
-- KEYS[1]  nodes   hash: node -> beat_us:registered_us:identity
-- KEYS[2]  counts  hash: node -> [requests,denied,...], the rest being its last seconds
--                        gone_requests, gone_denied -> the totals of nodes that are gone
-- KEYS[3]  sheets  hash: name:node -> list
-- KEYS[4]  kept    hash: name -> value; what people have set
-- KEYS[5]  ends    sorted set: name -> until_us, for those that end by themselves
-- KEYS[6]  meta    hash: epoch, revision
-- ARGV[1]  node    ARGV[2]  identity, or '' when no heartbeat is due    ARGV[3]  forget_us
-- ARGV[4]  this node's counts           ARGV[5]  the revision that the node knows
-- ARGV[6]… pairs of sheets: name, list
-- Returns  {now_us, revision, nodes, counts, kept or nothing}; hashes as HGETALL gives them
--
-- Everything written is absolute, so that running this twice with the same arguments changes nothing. Nodes that are
-- silent are looked for with a heartbeat only: once a second is once a second for every node there is.
local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now = string.format('%.0f', now_us)
local node, identity, forget_us = ARGV[1], ARGV[2], tonumber(ARGV[3])
local forget_ms, day_ms = math.floor(forget_us / 1000), 86400000

local function forget(gone)
    local requests, denied = string.match(redis.call('HGET', KEYS[2], gone) or '[0,0', '^%[(%d+),(%d+)')
    redis.call('HINCRBY', KEYS[2], 'gone_requests', requests or 0)
    redis.call('HINCRBY', KEYS[2], 'gone_denied', denied or 0)
    redis.call('HDEL', KEYS[2], gone)
    redis.call('HDEL', KEYS[1], gone)
    redis.call('HDEL', KEYS[3], 'blocks:' .. gone, 'top:' .. gone)
end

-- Bring.
redis.call('HSET', KEYS[2], node, ARGV[4])
for at = 6, #ARGV, 2 do
    redis.call('HSET', KEYS[3], ARGV[at] .. ':' .. node, ARGV[at + 1])
end
if identity ~= '' then
    local known = redis.call('HGET', KEYS[1], node)
    local registered = known and string.match(known, '^%d+:(%d+):')
    redis.call('HSET', KEYS[1], node, now .. ':' .. (registered or now) .. ':' .. identity)
    redis.call('PEXPIRE', KEYS[1], forget_ms)
    redis.call('PEXPIRE', KEYS[2], day_ms)
    redis.call('PEXPIRE', KEYS[3], forget_ms)
    local nodes = redis.call('HGETALL', KEYS[1])
    for i = 1, #nodes, 2 do
        if tonumber(string.match(nodes[i + 1], '^%d+')) + forget_us < now_us then
            forget(nodes[i])
        end
    end
end

-- Forget what is over.
local over = redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', now, 'LIMIT', 0, 1000)
for _, name in ipairs(over) do
    redis.call('HDEL', KEYS[4], name)
    redis.call('ZREM', KEYS[5], name)
end

-- Take along.
redis.call('HSETNX', KEYS[6], 'epoch', time[1] .. '.' .. time[2])
local count = redis.call('HINCRBY', KEYS[6], 'revision', #over > 0 and 1 or 0)
redis.call('PEXPIRE', KEYS[6], day_ms) -- A new epoch only means that everybody reads again.
local revision = redis.call('HGET', KEYS[6], 'epoch') .. ':' .. count
local kept = revision ~= ARGV[5] and redis.call('HGETALL', KEYS[4])
return { now, revision, redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2]), kept }
