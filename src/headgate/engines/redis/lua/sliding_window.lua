-- sliding_window.lua -- two counters, of which the previous one fades. Same arithmetic as algorithms/sliding_window.py.
--
-- limit: limit, window_us, step_us, steps
-- state: start_us, previous, current
function sources.sliding_window()
    local MAX_PRODUCT = 2251799813685248 -- 2^51

    local function counters(limit, state, now_us)
        local start_us = now_us - now_us % limit[2]
        if not state then
            return start_us, 0, 0
        elseif state[1] == start_us then
            return start_us, state[2], state[3]
        elseif state[1] == start_us - limit[2] then
            return start_us, state[3], 0
        end
        return start_us, 0, 0
    end

    -- What still fits, in steps of a unit; negative if the key is over its limit.
    local function room_at(limit, previous, current, end_us, now_us)
        return (limit[1] - current) * limit[4] - previous * ceil_div(end_us - now_us, limit[3])
    end

    local function reset_after(limit, previous, current, end_us, now_us)
        if current > 0 then
            return end_us + limit[2] - now_us
        end
        return previous > 0 and end_us - now_us or 0
    end

    local function denied(limit, previous, current, end_us, now_us, cost)
        local window_us, step_us, steps = limit[2], limit[3], limit[4]
        local left = limit[1] - current
        local retry_after_us = NEVER
        if cost <= left then -- The previous window is in the way, and has to fade to what is left.
            retry_after_us = end_us - floor((left - cost) * steps / previous) * step_us - now_us
        elseif cost <= limit[1] then -- The current one is, and has to become the previous one first.
            local faded = floor((limit[1] - cost) * steps / current)
            retry_after_us = end_us + window_us - faded * step_us - now_us
        end
        local room = room_at(limit, previous, current, end_us, now_us)
        return 0, max(0, floor(room / steps)), retry_after_us, reset_after(limit, previous, current, end_us, now_us), 0
    end

    local function peek(limit, state, now_us, cost)
        local start_us, previous, current = counters(limit, state, now_us)
        local end_us = start_us + limit[2]
        local room = room_at(limit, previous, current, end_us, now_us)
        if cost <= limit[1] and cost * limit[4] <= room then
            return 1, floor(room / limit[4]), 0, reset_after(limit, previous, current, end_us, now_us), 0
        end
        return denied(limit, previous, current, end_us, now_us, cost)
    end

    return {
        fields = 3,
        numbers = 4,
        peek = peek,

        latest_us = function(state)
            return state[1]
        end,

        max_lead_us = function(limit)
            return min(limit[2], MAX_LEAD_US)
        end,

        -- All units may have been taken ahead of now, so they count as of now.
        cut = function(limit, state, now_us)
            return { now_us - now_us % limit[2], 0, min(state[2] + state[3], floor(MAX_PRODUCT / limit[4])) }
        end,

        take = function(limit, state, now_us, cost)
            local start_us, previous, current = counters(limit, state, now_us)
            local end_us = start_us + limit[2]
            local room = room_at(limit, previous, current, end_us, now_us)
            if cost <= limit[1] and cost * limit[4] <= room then
                if cost > 0 then
                    current = current + cost
                    state = { start_us, previous, current }
                end
                local reset_after_us = reset_after(limit, previous, current, end_us, now_us)
                return state, 1, floor(room / limit[4]) - cost, 0, reset_after_us, 0
            end
            return state, denied(limit, previous, current, end_us, now_us, cost)
        end,

        text = function(limit, state)
            return pack('<dddd', state[1], state[2], state[3], limit[1])
        end,

        force = function(limit, state, now_us, cost)
            local start_us, previous, current = counters(limit, state, now_us)
            local end_us = start_us + limit[2]
            if cost > 0 then
                current = min(current + cost, floor(MAX_PRODUCT / limit[4]))
                state = { start_us, previous, current }
            end
            local room = room_at(limit, previous, current, end_us, now_us)
            local reset_after_us = reset_after(limit, previous, current, end_us, now_us)
            return state, 1, max(0, floor(room / limit[4])), 0, reset_after_us, 0
        end,

        mark = function(state)
            return { state[1] }
        end,

        refund = function(limit, state, mark, now_us, cost)
            if not state then
                return state, 0
            end
            local start_us, previous, current = counters(limit, state, now_us)
            if mark[1] == start_us then
                local given = min(cost, current)
                return { start_us, previous, current - given }, given
            elseif mark[1] == start_us - limit[2] then
                local given = min(cost, previous)
                return { start_us, previous - given, current }, given
            end
            return state, 0
        end,

        used = function(limit, state, now_us)
            local start_us, previous, current = counters(limit, state, now_us)
            local weight = ceil_div(start_us + limit[2] - now_us, limit[3])
            return ceil_div(previous * weight, limit[4]) + current
        end,

        idle_at_us = function(limit, state)
            if state[3] > 0 then
                return state[1] + 2 * limit[2]
            end
            return state[2] > 0 and state[1] + limit[2] or 0
        end,
    }
end
