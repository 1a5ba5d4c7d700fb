-- prelude.lua -- the common part of all algorithms and commands.
--
-- This file, one file per algorithm, wire.lua and one file per command form one text. Servers store it as a library of
-- functions (`library.lua`), so that it is set up once; servers without functions get it as a script, with just the
-- command that is called. Numbers are doubles that hold integers below 2^53, as in the Python twin of each algorithm.
-- States are strings of packed doubles. Fields are only ever appended to a state: old code ignores those it does not
-- know, and new code has a default for missing ones, so both can run side by side on the same keys.
--
-- A command is a function of keys and arguments in `commands`. An algorithm is created by its own function, on first
-- use: a script pays only for what it needs. It is a table:
--   fields                           how many numbers its state has
--   numbers                          how many numbers its limit has, in the order the codec sends them
--   beside                           how many extra keys per state a call has to name, if any; after all states
--   text(limit, state)               the stored form of a state: its fields, then the limit, for listing keys
--   load(key, limit, now_us), save(key, limit, state, ttl)
--                                    instead of that, if the state is not a string of numbers; load returns the
--                                    state, the moment to continue from, whether it was cut (see `moment`), and whether
--                                    what is stored is not a state of ours
--   stored_limit(key)                the limit that was stored there, likewise
--   take(limit, state, now_us, cost) -> state', allowed, remaining, retry_after_us, reset_after_us, level
--   peek(limit, state, now_us, cost) -> allowed, remaining, retry_after_us, reset_after_us, level
--   force(limit, state, now_us, cost) -> state', allowed, …
--   force_past(limit, state, now_us, cost, came_us) -> state', allowed, …, if each unit has its own time
--   mark(state), refund(limit, state, mark, now_us, cost, low) -> state', given
--   low(state), watch(state) -> state', low, unwatch(state), if refunds use low-water marks (see watch.lua), and
--   left(mark, now_us, refunded)     the most that a refund gives back to a reservation without a mark
--   used(limit, state, now_us), idle_at_us(limit, state)
--   latest_us(state)                 the key's time: the latest moment in its state, 0 if there is none
--   max_lead_us(limit)               how far ahead of now the key's time may be and still be used as now
--   cut(limit, state, now_us)        the state with every moment ahead of now set to now
-- A limit and a state are arrays of numbers, a state is nil if the key was never used, and no function modifies the
-- state it is given: a step that is not written has not happened.
--
-- For one key, time never runs backwards, as explained in algorithms/base.py: nothing in a state is ahead of the
-- `now_us` that an algorithm gets, which is that of the key. `load_state` finds it, and `later` converts an answer for
-- that time into an answer for now.
local MAX_EXACT = 9007199254740991
local MAX_LEAD_US = 60000000
local NEVER = -1
local ORDER = { 'fixed_window', 'sliding_window', 'sliding_log', 'token_bucket', 'exponential_backoff', 'adaptive',
    'concurrency' }
local SLIDING_WINDOW, TOKEN_BUCKET, EXPONENTIAL_BACKOFF, CONCURRENCY = 2, 4, 5, 7 -- Indexes in ORDER.
local DOUBLES = '<' .. string.rep('d', 20)
local floor, max, min = math.floor, math.max, math.min
local call, pcall = redis.call, redis.pcall
local pack, unpack_numbers = struct.pack, struct.unpack
local commands, sources, algorithms = {}, {}, {}

-- The algorithm at this index in ORDER.
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

-- The time to live of something that ends at a moment, in milliseconds, and at least `ttl_floor_ms`.
local function ttl_ms(ends_us, now_us, ttl_floor_ms)
    return max(ceil_div(ends_us - now_us, 1000) + 1000, ttl_floor_ms)
end

-- The moment to continue from, for a key whose time is `latest_us`; true if that is too far ahead of now, so that the
-- state has to be cut.
local function moment(latest_us, now_us, max_lead_us)
    if latest_us <= now_us then
        return now_us, false
    elseif latest_us - now_us <= max_lead_us then
        return latest_us, false
    end
    return now_us, true
end

-- An answer for `lead_us` from now, with its times counted from now.
local function later(lead_us, allowed, remaining, retry_after_us, reset_after_us, level)
    if lead_us > 0 then
        if retry_after_us > 0 then
            retry_after_us = retry_after_us + lead_us
        end
        if reset_after_us > 0 then
            reset_after_us = reset_after_us + lead_us
        end
    end
    return allowed, remaining, retry_after_us, reset_after_us, level
end

-- An extra key of the same state: 'f' for refunds, 'l' for its line and 'p' for the places in it, 'e' for the expiry
-- of slots, 'v' for its version.
local function beside(key, letter)
    return 'hg:' .. letter .. string.sub(key, 5)
end

-- The reply to a reading command, or nil and true if the key holds another type.
local function read(...)
    local reply = pcall(...)
    if type(reply) ~= 'table' or not reply.err then
        return reply
    elseif string.find(reply.err, 'WRONGTYPE', 1, true) then
        return nil, true
    end
    error(reply.err)
end

local function not_ours(key)
    return redis.error_reply('ERR the state at ' .. key .. ' is not a Headgate state; reset the key')
end

-- Store the state that has replaced `before`, which was loaded in this call. Even an idle one is kept for as long as
-- the key's time may be ahead of now.
local function save_state(algorithm, key, limit, before, state, now_us, ttl_floor_ms)
    local idle_at_us = algorithm.idle_at_us(limit, state)
    if before and idle_at_us > now_us and not algorithm.save and algorithm.idle_at_us(limit, before) == idle_at_us then
        call('SET', key, algorithm.text(limit, state), 'KEEPTTL') -- Cheaper, with the same effect.
        return
    end
    local latest_us = algorithm.latest_us(state)
    local ttl = ttl_ms(max(idle_at_us, latest_us) + algorithm.max_lead_us(limit), now_us, ttl_floor_ms)
    if latest_us == 0 or ttl <= 0 then
        call('DEL', key) -- It is empty, or idle with its time long past.
    elseif algorithm.save then
        algorithm.save(key, limit, state, ttl)
    else
        call('SET', key, algorithm.text(limit, state), 'PX', ttl)
    end
end

-- A state that is a string of numbers; nil and true if what is stored is not a state of ours.
local function read_state(algorithm, key)
    local text, bad = read('GET', key)
    if not text then
        return nil, bad
    end
    if #text < 8 * algorithm.fields then
        return nil, true
    end
    local state = { unpack_numbers(algorithm.format, text) }
    state[algorithm.fields + 1] = nil -- The position after the last number.
    local last = algorithm.fields
    if algorithm.watch and #text >= 8 * (last + 2) then -- The limit, followed by a low-water mark.
        state[last + 1] = unpack_numbers('<d', text, 8 * (last + 1) + 1)
        last = last + 1
    end
    for i = 1, last do
        local number = state[i]
        if not (number >= -1 and number <= MAX_EXACT and number % 1 == 0) then
            return nil, true
        end
    end
    return state
end

-- The state of a key, or nil if it was never used, and the moment to continue from; or nil, now_us, true if what is
-- stored is not a state of ours. One that had to be cut is stored at once: otherwise every peek would cut it again.
local function load_state(algorithm, key, limit, now_us, ttl_floor_ms)
    local state, at_us, is_cut, bad
    if algorithm.load then
        state, at_us, is_cut, bad = algorithm.load(key, limit, now_us)
    else
        state, bad = read_state(algorithm, key)
        at_us = now_us
        local latest_us = state and algorithm.latest_us(state) or 0
        if latest_us > now_us then
            at_us, is_cut = moment(latest_us, now_us, algorithm.max_lead_us(limit))
            if is_cut then
                state = algorithm.cut(limit, state, now_us)
            end
        end
    end
    if is_cut then
        save_state(algorithm, key, limit, nil, state, now_us, ttl_floor_ms)
    end
    return state, at_us, bad
end
