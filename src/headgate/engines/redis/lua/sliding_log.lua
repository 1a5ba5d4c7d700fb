-- sliding_log.lua -- every request, for one window. Same answers as algorithms/sliding_log.py.
--
-- limit: limit, window_us
-- state: a sorted set. A request is a member with its time as the score and its cost inside, made unique by a
--        number, so that no second key is needed. Two members sort before all requests: 't' with minus the running
--        total as its score, and 'l' with minus the limit, for people who list keys.
--
-- In the script a state is what `load` saw of the set at `now_us`, and what `save` has to do to it:
--   key, gone_us   the set, and the time up to which its entries have left the window
--   total          the costs in the window
--   newest_us      when the last request came; one that lies ahead of now is taken as now
--   ahead          whether the clock stepped back behind some of them
--   added          costs to be added at now;  refund  { at_us, cost } to be taken back
function sources.sliding_log()
    local function exact(number)
        return string.format('%.0f', number)
    end

    local function cost_of(member)
        if #member ~= 24 then
            return 0 -- It is not one of ours.
        end
        local _, _, cost = unpack_numbers('>ddd', member)
        return cost
    end

    local next_number = 0 -- None of this call has that number, or a higher one.

    local function add(key, at_us, cost)
        -- Of the same microsecond the last has the highest number, unless the clock stepped back to it.
        local last = call('ZREVRANGEBYSCORE', key, exact(at_us), exact(at_us), 'LIMIT', 0, 1)[1]
        local number = next_number
        if last and #last == 24 then
            local _, its_number = unpack_numbers('>ddd', last)
            number = max(number, its_number + 1)
        end
        while call('ZADD', key, 'NX', exact(at_us), pack('>ddd', at_us, number, cost)) == 0 do
            number = number + 1
        end
        next_number = number + 1
    end

    local function sum_between(key, from_us, to_us)
        local sum = 0
        for _, member in ipairs(call('ZRANGEBYSCORE', key, from_us, to_us)) do
            sum = sum + cost_of(member)
        end
        return sum
    end

    local function changed(state, change)
        local copy = { key = nil, gone_us = 0, total = 0, newest_us = 0, added = {} }
        for name, value in pairs(state or {}) do
            copy[name] = value
        end
        for name, value in pairs(change) do
            copy[name] = value
        end
        return copy
    end

    local function with_cost(state, now_us, cost)
        local added = { cost }
        for _, earlier in ipairs(state and state.added or {}) do
            added[#added + 1] = earlier
        end
        local total = (state and state.total or 0) + cost
        return changed(state, { total = total, newest_us = now_us, added = added })
    end

    local function reset_after(limit, state, now_us)
        return state and state.total > 0 and state.newest_us + limit[2] - now_us or 0
    end

    -- When enough of the oldest have left: they are read a few at a time, the added ones come last.
    local function retry_after(limit, state, now_us, cost)
        local over = state.total - limit[1] + cost -- In this order: the sum may be too large for a double.
        local offset = 0
        while state.key do
            local part = call('ZRANGEBYSCORE', state.key, '(' .. exact(state.gone_us), '+inf', 'WITHSCORES',
                'LIMIT', offset, 16)
            for i = 1, #part, 2 do
                over = over - cost_of(part[i])
                if over <= 0 then
                    return min(tonumber(part[i + 1]), now_us) + limit[2] - now_us
                end
            end
            if #part == 0 then
                break
            end
            offset = offset + 16
        end
        return limit[2]
    end

    local function denied(limit, state, now_us, cost)
        local total = state and state.total or 0
        local retry_after_us = NEVER
        if cost <= limit[1] then
            retry_after_us = retry_after(limit, state, now_us, cost)
        end
        return 0, max(0, limit[1] - total), retry_after_us, reset_after(limit, state, now_us), 0
    end

    local function peek(limit, state, now_us, cost)
        local total = state and state.total or 0
        if total + cost <= limit[1] then
            return 1, limit[1] - total, 0, reset_after(limit, state, now_us), 0
        end
        return denied(limit, state, now_us, cost)
    end

    return {
        fields = 0,
        numbers = 2,
        peek = peek,

        load = function(key, limit, now_us)
            local total, bad = read('ZSCORE', key, 't')
            if not total then
                return nil, bad or call('EXISTS', key) == 1
            end
            local gone_us = now_us - limit[2]
            local newest_us = tonumber(call('ZRANGE', key, -1, -1, 'WITHSCORES')[2])
            return {
                key = key,
                gone_us = gone_us,
                total = -tonumber(total) - sum_between(key, '(0', exact(gone_us)),
                newest_us = min(newest_us, now_us),
                ahead = newest_us > now_us,
                added = {},
            }
        end,

        stored_limit = function(key)
            local limit = read('ZSCORE', key, 'l')
            return limit and -tonumber(limit)
        end,

        save = function(key, limit, state, now_us, ttl)
            call('ZREMRANGEBYSCORE', key, '(0', exact(now_us - limit[2]))
            if state.ahead then
                for _, member in ipairs(call('ZRANGEBYSCORE', key, '(' .. exact(now_us), '+inf')) do
                    call('ZADD', key, exact(now_us), member)
                end
            end
            for i = #state.added, 1, -1 do
                add(key, now_us, state.added[i])
            end
            if state.refund then
                local at_us, left = exact(state.refund[1]), state.refund[2]
                for _, member in ipairs(call('ZRANGEBYSCORE', key, at_us, at_us)) do
                    local part = min(left, cost_of(member))
                    left = left - part
                    if part > 0 then
                        call('ZREM', key, member)
                        if cost_of(member) > part then
                            add(key, state.refund[1], cost_of(member) - part)
                        end
                    end
                end
            end
            call('ZADD', key, exact(-state.total), 't', exact(-limit[1]), 'l')
            call('PEXPIRE', key, ttl)
        end,

        take = function(limit, state, now_us, cost)
            local total = state and state.total or 0
            if total + cost <= limit[1] then
                if cost > 0 then
                    state = with_cost(state, now_us, cost)
                end
                return state, 1, limit[1] - total - cost, 0, reset_after(limit, state, now_us), 0
            end
            local after = state
            if state and state.ahead then
                after = changed(state, {})
            end
            return after, denied(limit, state, now_us, cost)
        end,

        force = function(limit, state, now_us, cost)
            if cost > 0 then
                state = with_cost(state, now_us, min(cost, MAX_EXACT - (state and state.total or 0)))
            end
            return state, 1, max(0, limit[1] - (state and state.total or 0)), 0, reset_after(limit, state, now_us), 0
        end,

        mark = function(state)
            return { state.newest_us }
        end,

        refund = function(limit, state, mark, now_us, cost)
            if not state or mark[1] <= state.gone_us or mark[1] > now_us then
                return state, 0
            end
            local given = min(cost, sum_between(state.key, exact(mark[1]), exact(mark[1])))
            if given == 0 then
                return state, 0
            end
            return changed(state, { total = state.total - given, refund = { mark[1], given } }), given
        end,

        used = function(_, state)
            return state and state.total or 0
        end,

        idle_at_us = function(limit, state)
            return state.total > 0 and state.newest_us + limit[2] or 0
        end,
    }
end
