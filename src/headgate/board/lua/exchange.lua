-- exchange.lua -- store one node's part of the board, and return everybody's.
--
-- KEYS[1]  nodes   hash: node -> beat_us:registered_us:identity
-- KEYS[2]  counts  hash: node#life -> [requests,denied,last,...], followed by its last seconds up to `last`
--                        gone_requests, gone_denied -> the totals of ended lives
-- KEYS[3]  sheets  hash: name:node -> list
-- KEYS[4]  kept    hash: name -> value; set by operators
-- KEYS[5]  ends    sorted set: name -> until_us, for entries that expire
-- KEYS[6]  meta    hash: epoch, revision, agreed
-- KEYS[7]  scopes  hash: node#life -> {rule: [last,[...]]}, its last seconds by rule
-- KEYS[8]  agreed  hash: scope -> epoch:choice, as agree.lua writes it
-- ARGV[1]  node    ARGV[2]  identity, or '' when no heartbeat is due    ARGV[3]  forget_us
-- ARGV[4]  this node's counts           ARGV[5]  the revision that the node knows
-- ARGV[6]  node#life: a process that replaces a dead one counts from zero, in its own field
-- ARGV[7]  this node's last seconds by rule, or '' when it watches none
-- ARGV[8]  the revision of the agreed choices that the node knows
-- ARGV[9]… pairs of sheets: name, list
-- Returns  {now_us, revision, nodes, counts, kept or nothing, scopes, agreed_revision, agreed or nothing};
--          hashes as returned by HGETALL
--
-- Everything written is absolute, so running this twice with the same arguments changes nothing. Only a heartbeat looks
-- for silent nodes: looking takes time for every node there is.
local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now = string.format('%.0f', now_us)
local node, identity, forget_us = ARGV[1], ARGV[2], tonumber(ARGV[3])
local forget_ms, day_ms = math.floor(forget_us / 1000), 86400000

local function forget(gone)
    redis.call('HDEL', KEYS[1], gone)
    redis.call('HDEL', KEYS[3], 'blocks:' .. gone, 'top:' .. gone, 'figures:' .. gone)
end

-- Add counts that have not changed lately to the totals. Their last seconds have been read by then.
local function settle()
    local counts = redis.call('HGETALL', KEYS[2])
    for i = 1, #counts, 2 do
        local requests, denied, last = string.match(counts[i + 1], '^%[(%d+),(%d+),(%d+)')
        local fresh = not last or tonumber(last) * 1000000 + forget_us >= now_us
        local starting = last == '0' and requests ~= '0'
        if not fresh and not starting and counts[i] ~= ARGV[6] then
            redis.call('HINCRBY', KEYS[2], 'gone_requests', requests)
            redis.call('HINCRBY', KEYS[2], 'gone_denied', denied)
            redis.call('HDEL', KEYS[2], counts[i])
            redis.call('HDEL', KEYS[7], counts[i])
        end
    end
end

-- Write this node's part.
redis.call('HSET', KEYS[2], ARGV[6], ARGV[4])
if ARGV[7] ~= '' then
    redis.call('HSET', KEYS[7], ARGV[6], ARGV[7])
    redis.call('PEXPIRE', KEYS[7], forget_ms)
elseif identity ~= '' then
    redis.call('HDEL', KEYS[7], ARGV[6])
end
for at = 9, #ARGV, 2 do
    redis.call('HSET', KEYS[3], ARGV[at] .. ':' .. node, ARGV[at + 1])
end
if identity ~= '' then
    local known = redis.call('HGET', KEYS[1], node)
    local registered = known and string.match(known, '^%d+:(%d+):')
    redis.call('HSET', KEYS[1], node, now .. ':' .. (registered or now) .. ':' .. identity)
    redis.call('PEXPIRE', KEYS[1], forget_ms)
    redis.call('PEXPIRE', KEYS[2], day_ms)
    redis.call('PEXPIRE', KEYS[3], forget_ms)
    redis.call('PEXPIRE', KEYS[8], day_ms)
    local nodes = redis.call('HGETALL', KEYS[1])
    for i = 1, #nodes, 2 do
        if tonumber(string.match(nodes[i + 1], '^%d+')) + forget_us < now_us then
            forget(nodes[i])
        end
    end
    settle()
end

-- Drop expired entries.
local over = redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', now, 'LIMIT', 0, 1000)
for _, name in ipairs(over) do
    redis.call('HDEL', KEYS[4], name)
    redis.call('ZREM', KEYS[5], name)
end

-- Read everybody's part.
redis.call('HSETNX', KEYS[6], 'epoch', time[1] .. '.' .. time[2])
local count = redis.call('HINCRBY', KEYS[6], 'revision', #over > 0 and 1 or 0)
redis.call('PEXPIRE', KEYS[6], day_ms) -- A new epoch only makes every node read everything again.
local revision = redis.call('HGET', KEYS[6], 'epoch') .. ':' .. count
local kept = revision ~= ARGV[5] and redis.call('HGETALL', KEYS[4])
local changes = redis.call('HGET', KEYS[6], 'agreed') or '0'
local agreed_revision = redis.call('HGET', KEYS[6], 'epoch') .. ':' .. changes
local agreed = agreed_revision ~= ARGV[8] and redis.call('HGETALL', KEYS[8])
local nodes, counts = redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2])
return { now, revision, nodes, counts, kept, redis.call('HGETALL', KEYS[7]), agreed_revision, agreed }
