-- token_bucket.lua -- a backlog that drains. Same arithmetic as algorithms/token_bucket.py.
--
-- limit: limit, burst, emission     (emission and backlog in 1/256 microseconds)
-- state: stamp_us, backlog
function sources.token_bucket()
    local GRAIN = 256

    local function backlog_at(state, now_us)
        if not state then
            return 0
        end
        return max(0, state[2] - max(0, now_us - state[1]) * GRAIN)
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
        local backlog = backlog_at(state, now_us)
        if fits(limit, backlog, cost) then
            backlog = backlog + cost * limit[3]
            if cost > 0 then
                state = { now_us, backlog }
            end
            return state, 1, remaining_at(limit, backlog), 0, ceil_div(backlog, GRAIN), 0
        end
        if state and now_us < state[1] then -- The clock stepped back: start draining from here.
            state = { now_us, backlog }
        end
        return state, denied(limit, backlog, cost)
    end

    return {
        fields = 2,
        numbers = 3,
        peek = peek,
        take = take,

        -- A place in line: the last number is the backlog, which the caller keeps as its mark.
        line_up = function(limit, state, now_us, cost, wait_us)
            local capacity = limit[2] * limit[3]
            if cost > limit[2] then
                return take(limit, state, now_us, cost)
            end
            local late_us = ceil_div(backlog_at(state, now_us) + cost * limit[3] - capacity, GRAIN)
            -- Full until the whole microsecond of the start: the next in line keeps its distance to it.
            local asked = capacity + late_us * GRAIN
            if late_us <= 0 or late_us > wait_us or asked > MAX_EXACT then
                return take(limit, state, now_us, cost)
            end
            return { now_us, asked }, 1, 0, late_us, ceil_div(asked, GRAIN), asked
        end,

        line_ends_us = function(limit, state, now_us)
            local late = backlog_at(state, now_us) - limit[2] * limit[3]
            return late > 0 and now_us + ceil_div(late, GRAIN) or 0
        end,

        leave_line = function(limit, state, mark, now_us, cost)
            if not state or state[1] ~= mark[1] or state[2] ~= mark[2] then
                return state
            end
            return { now_us, max(0, backlog_at(state, now_us) - cost * limit[3]) }
        end,

        text = function(limit, state)
            return pack('<ddd', state[1], state[2], limit[1])
        end,

        force = function(limit, state, now_us, cost)
            local backlog = backlog_at(state, now_us)
            if cost > 0 then
                backlog = min(backlog + cost * limit[3], MAX_EXACT)
                state = { now_us, backlog }
            end
            return state, 1, remaining_at(limit, backlog), 0, ceil_div(backlog, GRAIN), 0
        end,

        mark = function(state)
            return { state[1], state[2] }
        end,

        refund = function(limit, state, mark, now_us, cost, refunded)
            local backlog = backlog_at(state, now_us)
            local left = mark[2] - max(0, now_us - mark[1]) * GRAIN - refunded
            local given = max(0, min(cost * limit[3], left, backlog))
            if given == 0 then
                return state, 0
            end
            return { now_us, backlog - given }, given
        end,

        used = function(limit, state, now_us)
            return limit[3] > 0 and ceil_div(backlog_at(state, now_us), limit[3]) or 0
        end,

        idle_at_us = function(_, state)
            return state[1] + ceil_div(state[2], GRAIN)
        end,
    }
end
