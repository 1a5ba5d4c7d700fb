-- exponential_backoff.lua -- a window that tightens. Same arithmetic as algorithms/exponential_backoff.py.
--
-- limit: limit, window_us, denials_per_level, max_level, retry_us
-- state: start_us, count, denials, level, denied, cool_us
function sources.exponential_backoff()
    local function current(limit, state, now_us)
        local start_us = now_us - now_us % limit[2]
        if not state then
            return start_us, 0, 0, 0, 0, 0
        end
        local was_us, count, denials, level, denied, cool_us = unpack(state, 1, 6)
        if was_us >= start_us then
            return start_us, count, denials, level, denied, cool_us
        end
        local quiet = (start_us - was_us) / limit[2] - denied
        if quiet > 0 then
            denials = 0
        end
        return start_us, 0, denials, max(0, level - quiet), 0, cool_us
    end

    local function limit_at(limit, level)
        return limit[1] > 0 and max(1, floor(limit[1] / 2 ^ level)) or 0
    end

    local function cooling(limit, cool_us, now_us)
        return cool_us > 0 and now_us - cool_us < limit[2]
    end

    local function idle_at_us(limit, state)
        local start_us, count, denials, level, denied, cool_us = unpack(state, 1, 6)
        local windows = max(count > 0 and 1 or 0, level + denied, denials > 0 and denied + 1 or 0)
        return max(windows > 0 and start_us + windows * limit[2] or 0, cool_us > 0 and cool_us + limit[2] or 0)
    end

    local function answer(limit, state, now_us, allowed)
        local level = state[4]
        local remaining = max(0, limit_at(limit, level) - state[2])
        if cooling(limit, state[6], now_us) then
            remaining = 0
        end
        local retry_after_us = allowed and 0 or limit[5] * 2 ^ level
        return allowed and 1 or 0, remaining, retry_after_us, max(0, idle_at_us(limit, state) - now_us), level
    end

    local function peek(limit, state, now_us, cost)
        local now_state = { current(limit, state, now_us) }
        if cost > limit[1] then
            local _, remaining, _, reset_after_us, level = answer(limit, now_state, now_us, false)
            return 0, remaining, NEVER, reset_after_us, level
        end
        local fits = now_state[2] + cost <= limit_at(limit, now_state[4])
        return answer(limit, now_state, now_us, fits and not cooling(limit, now_state[6], now_us))
    end

    return {
        fields = 6,
        numbers = 5,
        peek = peek,
        idle_at_us = idle_at_us,

        latest_us = function(state)
            return max(state[1], state[6])
        end,

        max_lead_us = function(limit)
            return min(limit[2], MAX_LEAD_US)
        end,

        cut = function(limit, state, now_us)
            local start_us, count, denials, level, denied, cool_us = unpack(state, 1, 6)
            return { min(start_us, now_us - now_us % limit[2]), count, denials, level, denied, min(cool_us, now_us) }
        end,

        take = function(limit, state, now_us, cost)
            if cost > limit[1] or cost == 0 then
                return state, peek(limit, state, now_us, cost)
            end
            local start_us, count, denials, level, denied, cool_us = current(limit, state, now_us)
            if not cooling(limit, cool_us, now_us) then
                if count + cost <= limit_at(limit, level) then
                    state = { start_us, count + cost, 0, level, denied, cool_us }
                    return state, answer(limit, state, now_us, true)
                end
                denials = denials + 1
                if denials >= limit[3] then
                    denials = 0
                    level = min(level + 1, limit[4])
                    if level == limit[4] then
                        cool_us = now_us
                    end
                end
            end
            state = { start_us, count, denials, level, 1, cool_us }
            return state, answer(limit, state, now_us, false)
        end,

        text = function(limit, state)
            return pack('<ddddddd', state[1], state[2], state[3], state[4], state[5], state[6], limit[1])
        end,

        force = function(limit, state, now_us, cost)
            local start_us, count, denials, level, denied, cool_us = current(limit, state, now_us)
            if cost == 0 then
                return state, answer(limit, { start_us, count, denials, level, denied, cool_us }, now_us, true)
            end
            state = { start_us, min(count + cost, MAX_EXACT), 0, level, denied, cool_us }
            return state, answer(limit, state, now_us, true)
        end,

        mark = function(state)
            return { state[1] }
        end,

        refund = function(limit, state, mark, now_us, cost)
            if not state then
                return state, 0
            end
            local start_us, count, denials, level, denied, cool_us = current(limit, state, now_us)
            if mark[1] ~= start_us then
                return state, 0
            end
            local given = min(cost, count)
            return { start_us, count - given, denials, level, denied, cool_us }, given
        end,

        used = function(limit, state, now_us)
            local _, count = current(limit, state, now_us)
            return count
        end,
    }
end
