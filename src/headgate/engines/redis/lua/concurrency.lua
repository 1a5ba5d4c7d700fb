-- concurrency.lua -- a limit on simultaneous holders. Same answers as algorithms/concurrency.py.
--
-- limit: limit, ttl_us
-- state: a hash of '=' .. token to packed since_us, ttl_us, cost. The field 'newest' has the packed since_us and ttl_us
--        of the latest hold or renewal, even after its release. 'limit' is for listing keys, and 'sum' is the total
--        cost of all holders.
--        Beside it ('e'), a sorted set of all tokens by expiry time. It is never empty: while a Cluster moves a slot,
--        it cannot tell a missing key from a moved one, so both keys are named in every call, and LAST, which is not a
--        token, is always in the set, after all others.
--
-- A hold, a renewal or a release only looks at its own holder and at expired ones, however many there are: 'sum' and
-- the sorted set cover the rest. Older nodes do not know these two. They leave them unchanged and write the limit as
-- `10`, where this code writes `+10`, the same number to them: what they have written is read as a whole and rewritten.
-- The same applies to a set that is missing, or has another number of tokens.
--
-- As for every algorithm, a state in the script is never modified:
--   holders   the holders of a state that was read as a whole; nil if they are looked up in `key` and `ends`
--   expired   stored tokens that have expired by `at_us`
--   changes   tokens that `save` has to write, and what they hold (false for nothing); `many` is their number
--   used, newest, and the `last` token that came
function sources.concurrency()
    local FIELDS = 3 -- Fields of the hash that are not holders.
    local LAST = '\255' -- Not valid UTF-8, so it cannot be a token.
    local CHUNK = 1000 -- The maximum number of arguments in one command.
    local EMPTY = { holders = {}, expired = {}, changes = {}, many = 0, used = 0 }

    local function in_chunks(list, each)
        for start = 1, #list, CHUNK do
            each(unpack(list, start, min(start + CHUNK - 1, #list)))
        end
    end

    local function field_of(token)
        return '=' .. token
    end

    local function held_of(text)
        return text and #text >= 24 and { unpack_numbers('<ddd', text) } or nil
    end

    -- What is stored for these tokens, in order.
    local function stored(key, tokens)
        local found = {}
        for start = 1, #tokens, CHUNK do
            local fields = {}
            for i = start, min(start + CHUNK - 1, #tokens) do
                fields[#fields + 1] = field_of(tokens[i])
            end
            for _, text in ipairs(call('HMGET', key, unpack(fields))) do
                found[#found + 1] = held_of(text) or { 0, 0, 0 }
            end
        end
        return found
    end

    -- What a token holds, unless it has expired.
    local function holder(state, token)
        if not state then
            return nil
        elseif state.changes[token] ~= nil then
            return state.changes[token] or nil
        elseif state.holders then
            return state.holders[token]
        end
        local held = held_of(call('HGET', state.key, field_of(token)))
        return held and held[1] + held[2] > state.at_us and held or nil
    end

    local function has_expired(state, token)
        for _, expired in ipairs(state.expired) do
            if expired == token then
                return true
            end
        end
        return false
    end

    local function used_by(state)
        return state and state.used or 0
    end

    -- The later of two holds; at the same moment, the one that lasts longer.
    local function newer(one, other)
        if not one or other[1] > one[1] or (other[1] == one[1] and other[2] > one[2]) then
            return other
        end
        return one
    end

    -- The state in which `token` holds `held`, or nothing if that is nil.
    local function with(state, token, held)
        local before = holder(state, token)
        local changes, many = { [token] = held or false }, 1
        state = state or EMPTY
        for name, value in pairs(state.changes) do
            if name ~= token then
                changes[name], many = value, many + 1
            end
        end
        return {
            key = state.key,
            ends = state.ends,
            holders = state.holders,
            expired = state.expired,
            at_us = state.at_us,
            changes = changes,
            many = many,
            used = state.used - (before and before[3] or 0) + (held and held[3] or 0),
            newest = held and newer(state.newest, held) or state.newest,
            last = token,
        }
    end

    -- An iterator over the expiry of slots and their number, soonest first, without those of `token`.
    local function endings(state, token)
        local own, whole = {}, {}
        for name, held in pairs(state.changes) do
            if held and name ~= token then
                own[#own + 1] = { held[1] + held[2], held[3] }
            end
        end
        for name, held in pairs(state.holders or {}) do
            if state.changes[name] == nil and name ~= token then
                whole[#whole + 1] = { held[1] + held[2], held[3] }
            end
        end
        local function sooner(a, b)
            return a[1] < b[1]
        end
        table.sort(own, sooner)
        table.sort(whole, sooner)
        local next_own, next_stored, place, many = 1, 1, #state.expired, 8
        local function read_more()
            local flat = call('ZRANGE', state.ends, place, place + many - 1, 'WITHSCORES')
            local tokens = {}
            for i = 1, #flat, 2 do
                tokens[#tokens + 1] = flat[i]
            end
            whole, next_stored = {}, 1
            for i, held in ipairs(stored(state.key, tokens)) do
                if state.changes[tokens[i]] == nil and tokens[i] ~= token and tokens[i] ~= LAST then
                    whole[#whole + 1] = { tonumber(flat[2 * i]), held[3] }
                end
            end
            place, many = place + many, min(4 * many, CHUNK)
            return #tokens > 0
        end
        return function()
            while not whole[next_stored] and not state.holders and read_more() do end
            local mine, theirs = own[next_own], whole[next_stored]
            if mine and not (theirs and sooner(theirs, mine)) then
                next_own = next_own + 1
                return mine[1], mine[2]
            elseif theirs then
                next_stored = next_stored + 1
                return theirs[1], theirs[2]
            end
        end
    end

    -- When the last holder expires; 0 if there is none.
    local function idle_at_us(_, state)
        local latest_us = 0
        for _, held in pairs(state.changes) do
            latest_us = max(latest_us, held and held[1] + held[2] or 0)
        end
        if state.holders then
            for token, held in pairs(state.holders) do
                if state.changes[token] == nil then
                    latest_us = max(latest_us, held[1] + held[2])
                end
            end
            return latest_us
        end
        local flat = call('ZRANGE', state.ends, -2 - state.many, -2, 'WITHSCORES')
        for i = 1, #flat, 2 do
            local ends_us = tonumber(flat[i + 1])
            if state.changes[flat[i]] == nil and ends_us > state.at_us then
                latest_us = max(latest_us, ends_us)
            end
        end
        return latest_us
    end

    local function allowed(limit, state, now_us)
        local reset_after_us = state and max(0, idle_at_us(limit, state) - now_us) or 0
        return 1, max(0, limit[1] - used_by(state)), 0, reset_after_us, 0
    end

    local function denied(limit, state, now_us, cost, token)
        local used = used_by(state)
        local retry_after_us = NEVER
        if cost <= limit[1] and state then -- Others expire, soonest first, until the cost fits.
            local own = token and holder(state, token)
            local over = used - (own and own[3] or 0)
            for ends_us, held in endings(state, token) do
                over = over - held
                retry_after_us = ends_us - now_us
                if over + cost <= limit[1] then
                    break
                end
            end
        end
        local reset_after_us = state and max(0, idle_at_us(limit, state) - now_us) or 0
        return 0, max(0, limit[1] - used), retry_after_us, reset_after_us, 0
    end

    local function fresh_token(state, now_us)
        local number = 0
        while true do
            local token = string.format('#%.0f.%d', now_us, number)
            if not holder(state, token) then
                return token
            end
            number = number + 1
        end
    end

    local function peek(limit, state, now_us, cost)
        if used_by(state) + cost <= limit[1] then
            return allowed(limit, state, now_us)
        end
        return denied(limit, state, now_us, cost)
    end

    local function hold(limit, state, now_us, cost, token)
        local held = holder(state, token)
        if used_by(state) - (held and held[3] or 0) + cost <= limit[1] then
            if cost > 0 then
                state = with(state, token, { now_us, limit[2], cost })
            end
            return state, allowed(limit, state, now_us)
        end
        return state, denied(limit, state, now_us, cost, token)
    end

    -- A state written by this version: only what has expired is read. Nil if it is inconsistent.
    local function load_part(key, ends, sum, newest, now_us)
        local count, bad = read('ZCARD', ends)
        if bad or count - 1 ~= call('HLEN', key) - FIELDS then
            return nil
        end
        local at_us, is_cut = moment(newest[1], now_us, newest[2])
        if is_cut then
            return nil
        end
        local state = { key = key, ends = ends, changes = {}, many = 0, used = sum, at_us = at_us, newest = newest }
        state.expired = call('ZRANGE', ends, '-inf', string.format('%.0f', at_us), 'BYSCORE')
        for _, held in ipairs(stored(key, state.expired)) do
            state.used = state.used - held[3]
        end
        return state
    end

    -- Any other state. Returns the same as `load`.
    local function load_whole(key, now_us)
        local flat = call('HGETALL', key)
        local found, newest = {}, nil
        for i = 1, #flat, 2 do
            local field, text = flat[i], flat[i + 1]
            if string.sub(field, 1, 1) == '=' then
                local held = held_of(text)
                if not held then
                    return nil, now_us, false, true
                end
                found[string.sub(field, 2)] = held
                newest = newer(newest, held)
            elseif field == 'newest' and #text >= 16 then
                newest = newer(newest, { unpack_numbers('<dd', text) })
            end
        end
        if not newest then
            return nil, now_us, false, false
        end
        -- How far ahead of now the newest may be depends on its own time to live, whoever calls.
        local at_us, is_cut = moment(newest[1], now_us, newest[2])
        local state = { holders = {}, expired = {}, changes = {}, many = 0, used = 0, at_us = at_us,
            newest = is_cut and { now_us, newest[2] } or newest }
        for token, held in pairs(found) do
            if held[1] + held[2] <= at_us then
                state.expired[#state.expired + 1] = token
            else
                if held[1] > at_us then
                    held = { at_us, held[2], held[3] }
                    state.changes[token], state.many = held, state.many + 1
                end
                state.holders[token] = held
                state.used = state.used + held[3]
            end
        end
        return state, at_us, is_cut
    end

    -- Put all holders of a state that was read as a whole into the sorted set; changes are applied later.
    local function write_set(ends, state)
        call('DEL', ends)
        local flat = { '+inf', LAST }
        for token, held in pairs(state.holders) do
            if state.changes[token] == nil then
                flat[#flat + 1] = string.format('%.0f', held[1] + held[2])
                flat[#flat + 1] = token
            end
        end
        in_chunks(flat, function(...)
            call('ZADD', ends, ...)
        end)
    end

    return {
        fields = 0,
        numbers = 2,
        beside = 1,
        peek = peek,
        hold = hold,
        idle_at_us = idle_at_us,

        latest_us = function(state)
            return state.newest[1]
        end,

        max_lead_us = function(limit)
            return limit[2]
        end,

        load = function(key, _, now_us)
            local fields, bad = read('HMGET', key, 'limit', 'sum', 'newest')
            if bad then
                return nil, now_us, false, true
            elseif not fields[1] then
                return nil, now_us, false, call('EXISTS', key) == 1
            end
            local limit, sum, newest = fields[1], tonumber(fields[2] or nil), fields[3]
            if string.sub(limit, 1, 1) == '+' and sum and newest and #newest >= 16 then
                local ends = beside(key, 'e')
                local state = load_part(key, ends, sum, { unpack_numbers('<dd', newest) }, now_us)
                if state then
                    return state, state.at_us, false
                end
            end
            return load_whole(key, now_us)
        end,

        stored_limit = function(key)
            return tonumber(read('HGET', key, 'limit') or nil)
        end,

        save = function(key, limit, state, ttl)
            local ends = beside(key, 'e')
            if state.holders then
                write_set(ends, state)
            end
            local gone, gone_fields, held_fields, ends_us = {}, {}, {}, {}
            for _, token in ipairs(state.expired) do
                if not state.changes[token] then
                    gone[#gone + 1] = token
                end
            end
            for token, held in pairs(state.changes) do
                if held then
                    held_fields[#held_fields + 1] = field_of(token)
                    held_fields[#held_fields + 1] = pack('<ddd', held[1], held[2], held[3])
                    ends_us[#ends_us + 1] = string.format('%.0f', held[1] + held[2])
                    ends_us[#ends_us + 1] = token
                else
                    gone[#gone + 1] = token
                end
            end
            for i, token in ipairs(gone) do
                gone_fields[i] = field_of(token)
            end
            in_chunks(gone_fields, function(...)
                call('HDEL', key, ...)
            end)
            in_chunks(gone, function(...)
                call('ZREM', ends, ...)
            end)
            in_chunks(held_fields, function(...)
                call('HSET', key, ...)
            end)
            in_chunks(ends_us, function(...)
                call('ZADD', ends, ...)
            end)
            call('HSET', key, 'limit', string.format('+%.0f', limit[1]), 'sum', string.format('%.0f', state.used),
                'newest', pack('<dd', state.newest[1], state.newest[2]))
            call('PEXPIRE', key, ttl)
            call('PEXPIRE', ends, ttl)
        end,

        take = function(limit, state, now_us, cost)
            return hold(limit, state, now_us, cost, fresh_token(state, now_us))
        end,

        force = function(limit, state, now_us, cost)
            if cost > 0 then
                state = with(state, fresh_token(state, now_us), { now_us, limit[2], min(cost, 100000) })
            end
            return state, allowed(limit, state, now_us)
        end,

        release = function(state, token)
            return state and (holder(state, token) or has_expired(state, token)) and with(state, token, nil) or state
        end,

        renew = function(limit, state, now_us, token)
            local held = holder(state, token)
            if held then
                return with(state, token, { now_us, limit[2], held[3] }), 1
            end
            return state, 0
        end,

        mark = function(state)
            return state.last
        end,

        refund = function(_, state, mark, _, cost)
            local held = holder(state, mark)
            if not held then
                return state, 0
            end
            local given = min(cost, held[3])
            local left = held[3] - given
            return with(state, mark, left > 0 and { held[1], held[2], left } or nil), given
        end,

        used = function(_, state)
            return used_by(state)
        end,
    }
end
