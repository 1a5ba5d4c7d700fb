-- concurrency.lua -- so many at the same time. Same answers as algorithms/concurrency.py.
--
-- limit: limit, ttl_us
-- state: a hash of '=' .. token to packed since_us, ttl_us, cost; the field 'limit' is for people who list keys.
--
-- In the script a state is { holders, changes, pulled }: who holds what at `now_us`, which tokens `save` has to write
-- or delete, and whether the clock stepped back behind one of them.
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
        return { holders = holders, changes = changes, last = token }
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
        local after = state
        if state and state.pulled then
            after = { holders = state.holders, changes = state.changes }
        end
        return after, denied(limit, state, now_us, cost, token)
    end

    return {
        fields = 0,
        numbers = 2,
        peek = peek,
        hold = hold,
        idle_at_us = idle_at_us,

        load = function(key, _, now_us)
            local flat, bad = read('HGETALL', key)
            if bad or #flat == 0 then
                return nil, bad
            end
            local state = { holders = {}, changes = {}, pulled = false }
            local ours = false
            for i = 1, #flat, 2 do
                ours = ours or flat[i] == 'limit'
                if string.sub(flat[i], 1, 1) == '=' then
                    if #flat[i + 1] < 24 then
                        return nil, true
                    end
                    local token = string.sub(flat[i], 2)
                    local since_us, ttl_us, cost = unpack_numbers('<ddd', flat[i + 1])
                    if since_us + ttl_us <= now_us then
                        state.changes[token] = true
                    else
                        if since_us > now_us then
                            since_us = now_us
                            state.changes[token] = true
                            state.pulled = true
                        end
                        state.holders[token] = { since_us, ttl_us, cost }
                    end
                end
            end
            if not ours then
                return nil, true
            end
            return state
        end,

        stored_limit = function(key)
            return tonumber(read('HGET', key, 'limit') or nil)
        end,

        save = function(key, limit, state, _, ttl)
            for token in pairs(state.changes) do
                local held = state.holders[token]
                if held then
                    call('HSET', key, '=' .. token, pack('<ddd', held[1], held[2], held[3]))
                else
                    call('HDEL', key, '=' .. token)
                end
            end
            call('HSET', key, 'limit', string.format('%.0f', limit[1]))
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
