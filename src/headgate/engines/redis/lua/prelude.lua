-- prelude.lua -- what every algorithm and every command shares.
--
-- This file, one file per algorithm, wire.lua and one file per command make one text. Servers keep it as a library of
-- functions (`library.lua`), so that all of it is worked out once; servers that cannot do that are sent it as a script,
-- with the one command that is called. Numbers are doubles that hold integers below 2^53, as in the Python twin of each
-- algorithm. States are strings of packed doubles. A state's fields are only ever appended to: old code ignores what it
-- does not know, new code has a default for what is missing, and so both can run side by side on the same keys.
--
-- A command is a function of keys and arguments in `commands`. An algorithm is made by a function of its own, on first
-- use: a script pays only for what it needs. It is a table:
--   fields                           how many numbers its state has
--   numbers                          how many numbers its limit has, in the order the codec sends them
--   text(limit, state)               the state as it is stored: its fields, and then the limit for people who list keys
--   load(key, …), save(key, …)       instead of that, where the state is not a string; load returns nil, true when
--                                    what is there is not a state of ours
--   stored_limit(key)                the limit that was stored there, likewise
--   take(limit, state, now_us, cost) -> state', allowed, remaining, retry_after_us, reset_after_us, level
--   peek(limit, state, now_us, cost) -> allowed, remaining, retry_after_us, reset_after_us, level
--   force(limit, state, now_us, cost) -> state', allowed, …
--   mark(state), refund(limit, state, mark, now_us, cost, refunded) -> state', given
--   used(limit, state, now_us), idle_at_us(limit, state)
-- A limit and a state are arrays of numbers, a state is nil when the key was never used, and no function changes the
-- state it is given: a step that is not written has not happened.
local MAX_EXACT = 9007199254740991
local NEVER = -1
local ORDER = { 'fixed_window', 'sliding_window', 'sliding_log', 'token_bucket', 'exponential_backoff', 'adaptive',
    'concurrency' }
local SLIDING_WINDOW, TOKEN_BUCKET, EXPONENTIAL_BACKOFF, CONCURRENCY = 2, 4, 5, 7 -- Places in ORDER.
local DOUBLES = '<' .. string.rep('d', 20)
local floor, max, min = math.floor, math.max, math.min
local call, pcall = redis.call, redis.pcall
local pack, unpack_numbers = struct.pack, struct.unpack
local commands, sources, algorithms = {}, {}, {}

-- The algorithm with that place in ORDER.
local function algorithm_of(number)
    local algorithm = algorithms[number]
    if not algorithm then
        algorithm = sources[ORDER[number]]()
        algorithm.number = number
        algorithm.format = string.sub(DOUBLES, 1, algorithm.fields + 1)
        algorithm.limit_format = string.sub(DOUBLES, 1, algorithm.numbers + 1)
        algorithms[number] = algorithm
    end
    return algorithm
end

local function is_whole(number)
    return number >= 0 and number <= MAX_EXACT and number % 1 == 0
end

local function ceil_div(a, b)
    return -floor(-a / b)
end

-- The time to live of a state, in milliseconds. `ttl_floor_ms` is what the caller wants it to be at least.
local function ttl_ms(idle_at_us, now_us, ttl_floor_ms)
    return max(ceil_div(idle_at_us - now_us, 1000) + 1000, ttl_floor_ms)
end

-- Another key that belongs to the same state: 'f' for refunds, 'l' for its line, 'v' for its version.
local function beside(key, letter)
    return 'hg:' .. letter .. string.sub(key, 5)
end

-- The reply to a command that reads, or nil and true when the key holds something of another kind.
local function read(...)
    local reply = pcall(...)
    if type(reply) ~= 'table' or not reply.err then
        return reply
    elseif string.find(reply.err, 'WRONGTYPE', 1, true) then
        return nil, true
    end
    error(reply.err)
end

-- The state of a key, or nil when it was never used; nil and true when what is there is not a state of ours.
local function load_state(algorithm, key, limit, now_us)
    if algorithm.load then
        return algorithm.load(key, limit, now_us)
    end
    local text, bad = read('GET', key)
    if not text then
        return nil, bad
    end
    if #text < 8 * algorithm.fields then
        return nil, true
    end
    local state = { unpack_numbers(algorithm.format, text) }
    for i = 1, algorithm.fields do
        local number = state[i]
        if not (number >= -1 and number <= MAX_EXACT and number % 1 == 0) then
            return nil, true
        end
    end
    return state
end

local function not_ours(key)
    return redis.error_reply('ERR the state at ' .. key .. ' is not one of ours; reset the key')
end

-- Store what has become of the state `before`, which was loaded in this call.
local function save_state(algorithm, key, limit, before, state, now_us, ttl_floor_ms)
    local idle_at_us = algorithm.idle_at_us
    local ends_us = idle_at_us(limit, state)
    if ends_us <= now_us then
        call('DEL', key) -- Idle and absent mean the same.
    elseif algorithm.save then
        algorithm.save(key, limit, state, now_us, ttl_ms(ends_us, now_us, ttl_floor_ms))
    elseif before and idle_at_us(limit, before) == ends_us then
        call('SET', key, algorithm.text(limit, state), 'KEEPTTL') -- Cheaper, and the same.
    else
        call('SET', key, algorithm.text(limit, state), 'PX', ttl_ms(ends_us, now_us, ttl_floor_ms))
    end
end
