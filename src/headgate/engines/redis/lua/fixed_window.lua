-- fixed_window.lua -- one counter per window. Same arithmetic as algorithms/fixed_window.py.
--
-- limit: limit, start_us, end_us, next_us. The windows [start_us, end_us) and [end_us, next_us) are computed by the
--        caller, so that calendars need no time zones here; for plain windows end_us - start_us is the length, and the
--        store's clock finds its own window. A calendar whose periods do not contain `now` is STALE.
-- state: start_us, count
function sources.fixed_window()
    local function bounds(limit, now_us)
        local start_us, end_us, next_us = limit[2], limit[3], limit[4]
        if next_us == 0 then
            local window_us = end_us - start_us
            start_us = now_us - now_us % window_us
            return start_us, start_us + window_us
        end
        if now_us >= end_us then
            return end_us, next_us
        end
        return start_us, end_us
    end

    local function count_at(state, start_us)
        return state and state[1] >= start_us and state[2] or 0
    end

    local function denied(limit, count, cost, left_us)
        local retry_after_us = cost > limit[1] and NEVER or left_us
        return 0, max(0, limit[1] - count), retry_after_us, count > 0 and left_us or 0, 0
    end

    local function peek(limit, state, now_us, cost)
        local start_us, end_us = bounds(limit, now_us)
        local count = count_at(state, start_us)
        if count + cost <= limit[1] then
            return 1, limit[1] - count, 0, count > 0 and end_us - now_us or 0, 0
        end
        return denied(limit, count, cost, end_us - now_us)
    end

    return {
        fields = 2,
        numbers = 4,
        peek = peek,

        -- A key's time may be a little ahead of now, and must also be in one of the two periods.
        stale = function(limit, now_us)
            return limit[4] > 0 and not (limit[2] <= now_us and now_us + MAX_LEAD_US < limit[4])
        end,

        latest_us = function(state)
            return state[1]
        end,

        max_lead_us = function(limit)
            return limit[4] > 0 and MAX_LEAD_US or min(limit[3] - limit[2], MAX_LEAD_US)
        end,

        cut = function(limit, state, now_us)
            return { bounds(limit, now_us), state[2] }
        end,

        take = function(limit, state, now_us, cost)
            local start_us, end_us = bounds(limit, now_us)
            local count = count_at(state, start_us)
            local asked = count + cost
            if asked <= limit[1] then
                if cost > 0 then
                    state = { start_us, asked }
                end
                return state, 1, limit[1] - asked, 0, asked > 0 and end_us - now_us or 0, 0
            end
            return state, denied(limit, count, cost, end_us - now_us)
        end,

        text = function(limit, state)
            return pack('<ddd', state[1], state[2], limit[1])
        end,

        force = function(limit, state, now_us, cost)
            local start_us, end_us = bounds(limit, now_us)
            local count = count_at(state, start_us)
            if cost > 0 then
                count = min(count + cost, MAX_EXACT)
                state = { start_us, count }
            end
            return state, 1, max(0, limit[1] - count), 0, count > 0 and end_us - now_us or 0, 0
        end,

        mark = function(state)
            return { state[1] }
        end,

        refund = function(limit, state, mark, now_us, cost)
            local start_us = bounds(limit, now_us)
            if not state or state[1] ~= mark[1] or start_us > mark[1] then
                return state, 0
            end
            local given = min(cost, state[2])
            return { mark[1], state[2] - given }, given
        end,

        used = function(limit, state, now_us)
            return count_at(state, (bounds(limit, now_us)))
        end,

        idle_at_us = function(limit, state)
            if state[2] == 0 then
                return 0
            end
            local _, end_us = bounds(limit, state[1])
            return end_us
        end,
    }
end
