-- take.lua -- take one unit of one limit for each key, independently: the most frequent call.
--
-- keys     the states, then their extra keys, if any
-- args[1]  the limit: its algorithm and its numbers, packed
-- args[2]  packed, if not the defaults: now_us (0 for the server's clock), ttl_floor_ms, flags (1: with versions)
-- Returns  the same as `decide`
local STALE, NOT_OURS = -1, -3
local VERSION_TTL_MS = 3600000
local MOST_KNOWN = 1000
local known, how_many_known = {}, 0 -- Rules by their text: parsing one costs as much as deciding.
local now_us, ttl_floor_ms -- Of the current call.

local function rule_of(text)
    local rule = known[text]
    if not rule then
        packed, at = text, 1
        rule = read_rule()
        if at ~= #packed + 1 then
            error('a limit makes no sense')
        end
        if how_many_known == MOST_KNOWN then
            known, how_many_known = {}, 0
        end
        known[text], how_many_known = rule, how_many_known + 1
    end
    return rule
end

-- Whether a calendar that was sent along is out of date.
local function is_stale(rule)
    return rule.algorithm.stale and rule.algorithm.stale(rule.limit, now_us)
end

local function take_one(rule, key)
    local algorithm, limit = rule.algorithm, rule.limit
    if is_stale(rule) then
        return STALE, 0, 0, 0, 0
    end
    local state, at_us, bad = load_state(algorithm, key, limit, now_us, ttl_floor_ms)
    if bad then
        return NOT_OURS, 0, 0, 0, 0
    end
    local after, allowed, remaining, retry_after_us, reset_after_us, level = algorithm.take(limit, state, at_us, 1)
    if after ~= state then
        save_state(algorithm, key, limit, state, after, now_us, ttl_floor_ms)
    end
    return later(at_us - now_us, allowed, remaining, retry_after_us, reset_after_us, level)
end

-- The number of this step among all that its key's state has decided; 0 if it was not decided.
local function next_version(key, allowed, reset_after_us)
    if allowed < 0 then
        return 0
    end
    local version = redis.pcall('INCR', beside(key, 'v'))
    if type(version) ~= 'number' then
        return 0
    end
    call('PEXPIRE', beside(key, 'v'), max(VERSION_TTL_MS, ttl_ms(now_us + reset_after_us, now_us, ttl_floor_ms)))
    return version
end

function commands.take(keys, args)
    local rule = rule_of(args[1])
    local with_versions = false
    if args[2] then
        now_us, ttl_floor_ms = read_time(args[2])
        with_versions = read_byte() == 1
    else
        now_us, ttl_floor_ms = server_time(), 0
    end
    local reply, count = { now_us }, 1
    local states = #keys / (1 + (rule.algorithm.beside or 0))
    if states % 1 ~= 0 then
        error('the keys do not fit the limit')
    end
    for i = 1, states do
        reply[count + 1], reply[count + 2], reply[count + 3], reply[count + 4], reply[count + 5] =
            take_one(rule, keys[i])
        count = count + 5
    end
    if with_versions then
        for i = 1, states do
            reply[count + i] = next_version(keys[i], reply[5 * i - 3], reply[5 * i])
        end
    end
    return reply
end
