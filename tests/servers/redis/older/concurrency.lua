-- concurrency.lua -- as nodes had it that know no sorted set of ends: every step reads all holders.
--
-- limit: limit, ttl_us state: a hash of '=' .. token to packed since_us, ttl_us, cost; the field 'limit' is for people
-- who list keys, and 'newest' has
-- since_us and ttl_us of the latest hold or renewal, packed: also when that was let go. (Older nodes know nothing of
-- it,
--        and leave it alone.)
--
-- In the script a state is { holders, changes, newest }: who holds what at `now_us`, which tokens `save` has to write
-- or delete, and the latest hold or renewal.
function sources.concurrency()
    local function used_by(holders)
        local sum = 0
        for _, held in pairs(holders) do
            sum = sum + held[3]
        end
        return sum
    end

    local function holders_of(state)
        return state and state.holders or {}
    end

    -- The later of two holds; of two at one moment, the one that lasts longer.
    local function newer(one, other)
        if not one or other[1] > one[1] or (other[1] == one[1] and other[2] > one[2]) then
            return other
        end
        return one
    end

    -- A copy of the state in which `token` holds `held`, or nothing.
    local function with(state, token, held)
        local holders, changes = {}, {}
        for name, value in pairs(holders_of(state)) do
            holders[name] = value
        end
        for name in pairs(state and state.changes or {}) do
            changes[name] = true
        end
        holders[token] = held
        changes[token] = true
        local newest = state and state.newest
        return { holders = holders, changes = changes, last = token, newest = held and newer(newest, held) or newest }
    end

    local function idle_at_us(_, state)
        local latest_us = 0
        for _, held in pairs(state.holders) do
            latest_us = max(latest_us, held[1] + held[2])
        end
        return latest_us
    end

    local function allowed(limit, state, now_us)
        local holders = holders_of(state)
        local reset_after_us = state and max(0, idle_at_us(limit, state) - now_us) or 0
        return 1, max(0, limit[1] - used_by(holders)), 0, reset_after_us, 0
    end

    local function denied(limit, state, now_us, cost, token)
        local holders = holders_of(state)
        local used = used_by(holders)
        local retry_after_us = NEVER
        if cost <= limit[1] then -- Others expire, the soonest first, until the cost fits.
            local ends, over = {}, 0
            for name, held in pairs(holders) do
                if name ~= token then
                    ends[#ends + 1] = { held[1] + held[2], held[3] }
                    over = over + held[3]
                end
            end
            table.sort(ends, function(a, b)
                return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2])
            end)
            for _, ending in ipairs(ends) do
                over = over - ending[2]
                retry_after_us = ending[1] - now_us
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
            if not holders_of(state)[token] then
                return token
            end
            number = number + 1
        end
    end

    local function peek(limit, state, now_us, cost)
        if used_by(holders_of(state)) + cost <= limit[1] then
            return allowed(limit, state, now_us)
        end
        return denied(limit, state, now_us, cost)
    end

    local function hold(limit, state, now_us, cost, token)
        local held = holders_of(state)[token]
        if used_by(holders_of(state)) - (held and held[3] or 0) + cost <= limit[1] then
            if cost > 0 then
                state = with(state, token, { now_us, limit[2], cost })
            end
            return state, allowed(limit, state, now_us)
        end
        return state, denied(limit, state, now_us, cost, token)
    end

    return {
        fields = 0,
        numbers = 2,
        beside = 1, -- It is sent by an engine of today, and looks at no second key.
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
            local flat, bad = read('HGETALL', key)
            if bad or #flat == 0 then
                return nil, now_us, false, bad
            end
            local found, ours, newest = {}, false, nil
            for i = 1, #flat, 2 do
                local field, text = flat[i], flat[i + 1]
                ours = ours or field == 'limit'
                if string.sub(field, 1, 1) == '=' then
                    if #text < 24 then
                        return nil, now_us, false, true
                    end
                    local held = { unpack_numbers('<ddd', text) }
                    found[string.sub(field, 2)] = held
                    newest = newer(newest, held)
                elseif field == 'newest' and #text >= 16 then
                    newest = newer(newest, { unpack_numbers('<dd', text) })
                end
            end
            if not ours or not newest then
                return nil, now_us, false, not ours
            end
            -- The newest's own time to live is how far ahead of now it is believed, whoever asks.
            local at_us, is_cut = moment(newest[1], now_us, newest[2])
            local state = { holders = {}, changes = {}, newest = is_cut and { now_us, newest[2] } or newest }
            for token, held in pairs(found) do
                if held[1] + held[2] <= at_us then
                    state.changes[token] = true
                elseif held[1] > at_us then
                    state.holders[token] = { at_us, held[2], held[3] }
                    state.changes[token] = true
                else
                    state.holders[token] = held
                end
            end
            return state, at_us, is_cut
        end,

        stored_limit = function(key)
            return tonumber(read('HGET', key, 'limit') or nil)
        end,

        save = function(key, limit, state, ttl)
            for token in pairs(state.changes) do
                local held = state.holders[token]
                if held then
                    call('HSET', key, '=' .. token, pack('<ddd', held[1], held[2], held[3]))
                else
                    call('HDEL', key, '=' .. token)
                end
            end
            local newest = pack('<dd', state.newest[1], state.newest[2])
            call('HSET', key, 'limit', string.format('%.0f', limit[1]), 'newest', newest)
            call('PEXPIRE', key, ttl)
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
            if state and (state.holders[token] or state.changes[token]) then -- Also one that has expired.
                return with(state, token, nil)
            end
            return state
        end,

        renew = function(limit, state, now_us, token)
            local held = holders_of(state)[token]
            if held then
                return with(state, token, { now_us, limit[2], held[3] }), 1
            end
            return state, 0
        end,

        mark = function(state)
            return state.last
        end,

        refund = function(_, state, mark, _, cost)
            local held = holders_of(state)[mark]
            if not held then
                return state, 0
            end
            local given = min(cost, held[3])
            local left = held[3] - given
            return with(state, mark, left > 0 and { held[1], held[2], left } or nil), given
        end,

        used = function(_, state)
            return used_by(holders_of(state))
        end,
    }
end
