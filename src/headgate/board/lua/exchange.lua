-- exchange.lua -- bring one node's part of the board, and take everybody's along.
--
-- KEYS[1]  nodes    hash: node -> beat_us:registered_us:identity
-- KEYS[2]  traffic  hash: second:node -> requests:denied
-- KEYS[3]  totals   hash: node -> requests:denied; gone_requests and gone_denied hold those of nodes that left
-- KEYS[4]  sheets   hash: name:node -> list
-- KEYS[5]  kept     hash: name -> value; what people have set
-- KEYS[6]  ends     sorted set: name -> until_us, for those that end by themselves
-- KEYS[7]  meta     hash: epoch, revision
-- ARGV[1]  node     ARGV[2] identity, or '' when no heartbeat is due    ARGV[3] forget_us
-- ARGV[4]  requests:denied, this node's totals      ARGV[5] the revision that the node knows
-- ARGV[6]  how many seconds follow: second, requests:denied; after them pairs of sheets: name, list
-- Returns  {now_us, revision, nodes, traffic, totals, kept or false}; hashes as HGETALL gives them
--
-- Everything written is absolute, so that running this twice with the same arguments changes nothing.
local time = redis.call('TIME')
local now_s = tonumber(time[1])
local now_us = now_s * 1000000 + tonumber(time[2])
local node, identity, forget_us = ARGV[1], ARGV[2], tonumber(ARGV[3])
local kept_seconds, day_ms = 15, 86400000

local function revision(step)
    redis.call('HSETNX', KEYS[7], 'epoch', time[1] .. '.' .. time[2])
    local count = redis.call('HINCRBY', KEYS[7], 'revision', step)
    return redis.call('HGET', KEYS[7], 'epoch') .. ':' .. count
end

local function forget(gone)
    local requests, denied = string.match(redis.call('HGET', KEYS[3], gone) or '0:0', '^(%d+):(%d+)$')
    redis.call('HINCRBY', KEYS[3], 'gone_requests', requests or 0)
    redis.call('HINCRBY', KEYS[3], 'gone_denied', denied or 0)
    redis.call('HDEL', KEYS[3], gone)
    redis.call('HDEL', KEYS[1], gone)
    redis.call('HDEL', KEYS[4], 'blocks:' .. gone, 'top:' .. gone)
end

-- Bring.
if identity ~= '' then
    local known = redis.call('HGET', KEYS[1], node)
    local registered = known and string.match(known, '^%d+:(%d+):')
    local now = string.format('%.0f', now_us)
    redis.call('HSET', KEYS[1], node, now .. ':' .. (registered or now) .. ':' .. identity)
    redis.call('PEXPIRE', KEYS[1], math.floor(forget_us / 1000))
end
local at = 7
for _ = 1, tonumber(ARGV[6]) do
    redis.call('HSET', KEYS[2], ARGV[at] .. ':' .. node, ARGV[at + 1])
    at = at + 2
end
redis.call('HSET', KEYS[3], node, ARGV[4])
while at < #ARGV do
    redis.call('HSET', KEYS[4], ARGV[at] .. ':' .. node, ARGV[at + 1])
    at = at + 2
end
redis.call('PEXPIRE', KEYS[2], kept_seconds * 1000)
redis.call('PEXPIRE', KEYS[3], day_ms)
redis.call('PEXPIRE', KEYS[4], math.floor(forget_us / 1000))

-- Forget what is over.
local over = redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', string.format('%.0f', now_us), 'LIMIT', 0, 1000)
for _, name in ipairs(over) do
    redis.call('HDEL', KEYS[5], name)
    redis.call('ZREM', KEYS[6], name)
end
local nodes = redis.call('HGETALL', KEYS[1])
for i = 1, #nodes, 2 do
    local beat_us = tonumber(string.match(nodes[i + 1], '^%d+'))
    if beat_us + forget_us < now_us then
        forget(nodes[i])
    end
end
local traffic = redis.call('HGETALL', KEYS[2])
for i = 1, #traffic, 2 do
    if tonumber(string.match(traffic[i], '^%d+')) < now_s - kept_seconds then
        redis.call('HDEL', KEYS[2], traffic[i])
    end
end

-- Take along.
local now = revision(#over > 0 and 1 or 0)
local kept = false
if now ~= ARGV[5] then
    kept = redis.call('HGETALL', KEYS[5])
end
return {
    string.format('%.0f', now_us), now, redis.call('HGETALL', KEYS[1]), traffic, redis.call('HGETALL', KEYS[3]), kept,
}
