-- token_bucket.lua -- a backlog that drains. Same arithmetic as algorithms/token_bucket.py.
--
-- limit: limit, burst, emission, window_us     (emission and backlog in 1/256 microseconds)
-- state: stamp_us, backlog, and while a reservation is open its low-water mark
function sources.token_bucket()
    local GRAIN = 256

    local function backlog_at(state, now_us)
        if not state then
            return 0
        end
        return max(0, state[2] - (now_us - state[1]) * GRAIN)
    end

    -- A new backlog; if there is a low-water mark, it is lowered to the smallest backlog in between.
    local function moved(state, now_us, smallest, backlog)
        return { now_us, backlog, state and state[3] and min(state[3], smallest) }
    end

    local function remaining_at(limit, backlog)
        return limit[3] > 0 and max(0, floor((limit[2] * limit[3] - backlog) / limit[3])) or 0
    end

    local function fits(limit, backlog, cost)
        return cost <= limit[2] and backlog + cost * limit[3] <= limit[2] * limit[3]
    end

    local function denied(limit, backlog, cost)
        local retry_after_us = NEVER
        if cost <= limit[2] then
            retry_after_us = ceil_div(backlog + cost * limit[3] - limit[2] * limit[3], GRAIN)
        end
        return 0, remaining_at(limit, backlog), retry_after_us, ceil_div(backlog, GRAIN), 0
    end

    local function peek(limit, state, now_us, cost)
        local backlog = backlog_at(state, now_us)
        if fits(limit, backlog, cost) then
            return 1, remaining_at(limit, backlog), 0, ceil_div(backlog, GRAIN), 0
        end
        return denied(limit, backlog, cost)
    end

    local function take(limit, state, now_us, cost)
        local before = backlog_at(state, now_us)
        local backlog = before
        if fits(limit, backlog, cost) then
            backlog = backlog + cost * limit[3]
            if cost > 0 then
                state = moved(state, now_us, before, backlog)
            end
            return state, 1, remaining_at(limit, backlog), 0, ceil_div(backlog, GRAIN), 0
        end
        return state, denied(limit, backlog, cost)
    end

    return {
        fields = 2,
        numbers = 4,
        peek = peek,
        take = take,

        latest_us = function(state)
            return state[1]
        end,

        max_lead_us = function(limit)
            return min(limit[4] or 0, MAX_LEAD_US) -- Reservations of older versions have no window.
        end,

        cut = function(_, state, now_us)
            return { now_us, state[2], state[3] }
        end,

        -- Book a place in line.
        line_up = function(limit, state, now_us, cost, wait_us)
            local capacity = limit[2] * limit[3]
            if cost > limit[2] then
                return take(limit, state, now_us, cost)
            end
            local backlog = backlog_at(state, now_us)
            local late_us = ceil_div(backlog + cost * limit[3] - capacity, GRAIN)
            -- Full until the whole microsecond of the start, so that the next in line keeps its distance.
            local asked = capacity + late_us * GRAIN
            if late_us <= 0 or late_us > wait_us or asked > MAX_EXACT then
                return take(limit, state, now_us, cost)
            end
            -- The units are used at the start, so that is when the backlog is smallest.
            local after = moved(state, now_us, max(0, backlog - late_us * GRAIN), asked)
            return after, 1, 0, late_us, ceil_div(asked, GRAIN), 0
        end,

        -- The state as if the place had not been taken; nil if anything came after it.
        leave_line = function(state, spot, now_us)
            if state[2] ~= spot.backlog - (state[1] - spot.stamp_us) * GRAIN then
                return nil
            end
            local low
            if state[3] and spot.low >= 0 then
                low = spot.low
            end
            return { now_us, backlog_at({ spot.before_us, spot.before }, now_us), low }
        end,

        text = function(limit, state)
            if state[3] then
                return pack('<dddd', state[1], state[2], limit[1], state[3])
            end
            return pack('<ddd', state[1], state[2], limit[1])
        end,

        force = function(limit, state, now_us, cost)
            local backlog = backlog_at(state, now_us)
            if cost > 0 then
                local charged = min(backlog + cost * limit[3], MAX_EXACT)
                state, backlog = moved(state, now_us, backlog, charged), charged
            end
            return state, 1, remaining_at(limit, backlog), 0, ceil_div(backlog, GRAIN), 0
        end,

        mark = function(state)
            return { state[1], state[2] }
        end,

        low = function(state)
            return state and state[3] or 0
        end,

        watch = function(state)
            return { state[1], state[2], state[2] }, state[3] or 0
        end,

        unwatch = function(state)
            return state[3] and { state[1], state[2] } or state
        end,

        left = function(mark, now_us, refunded)
            return mark[2] - max(0, now_us - mark[1]) * GRAIN - refunded
        end,

        refund = function(limit, state, _, now_us, cost, low)
            local backlog = backlog_at(state, now_us)
            local given = max(0, min(cost * limit[3], low, backlog))
            if given == 0 then
                return state, 0
            end
            return { now_us, backlog - given, state[3] and max(0, state[3] - given) }, given
        end,

        used = function(limit, state, now_us)
            return limit[3] > 0 and ceil_div(backlog_at(state, now_us), limit[3]) or 0
        end,

        idle_at_us = function(_, state)
            return state[1] + ceil_div(state[2], GRAIN)
        end,
    }
end
