-- adaptive.lua -- three algorithms, one decides. Same arithmetic as algorithms/adaptive.py.
--
-- limit: limit, the numbers of sliding_window, token_bucket and exponential_backoff, and the index of the chosen one
--        (1, 2 or 3)
-- state: the three states, one after another; a part that was never used is all -1. Then the low-water mark of the
--        bucket, while a reservation is open.
--
-- Each of the three has its own time, and ensures that it never runs backwards. So to the driver no state is ahead of
-- now, and each part is called through `seen`.
function sources.adaptive()
    local parts = { algorithm_of(SLIDING_WINDOW), algorithm_of(TOKEN_BUCKET), algorithm_of(EXPONENTIAL_BACKOFF) }
    local fields = 0
    for _, part in ipairs(parts) do
        fields = fields + part.fields
    end

    local numbers_of = { 4, 3, 5 } -- A bucket's window is that of the sliding window.

    local function split_limit(limit)
        local limits, at = {}, 1
        for i, count in ipairs(numbers_of) do
            limits[i] = { unpack(limit, at + 1, at + count) }
            at = at + count
        end
        limits[2][4] = limits[1][2]
        return limits, limit[at + 1]
    end

    -- The state of a part and the moment to continue from, like `load_state` for a key.
    local function seen(part, limit, state, now_us)
        if not state then
            return nil, now_us
        end
        local at_us, too_far = moment(part.latest_us(state), now_us, part.max_lead_us(limit))
        return too_far and part.cut(limit, state, now_us) or state, at_us
    end

    local function peek_part(part, limit, state, now_us, cost)
        local found, at_us = seen(part, limit, state, now_us)
        return later(at_us - now_us, part.peek(limit, found, at_us, cost))
    end

    local function told(lead_us, after, ...)
        return after, later(lead_us, ...)
    end

    -- `what` is 'take' or 'force'.
    local function step_part(part, what, limit, state, now_us, cost)
        local found, at_us = seen(part, limit, state, now_us)
        return told(at_us - now_us, part[what](limit, found, at_us, cost))
    end

    local function split_state(state)
        local states, at = {}, 0
        for i, part in ipairs(parts) do
            if state and state[at + 1] >= 0 then
                states[i] = { unpack(state, at + 1, at + part.fields) }
            end
            at = at + part.fields
        end
        if states[2] then
            states[2][3] = state[fields + 1]
        end
        return states
    end

    local function joined(states)
        local state = {}
        for i, part in ipairs(parts) do
            for j = 1, part.fields do
                state[#state + 1] = states[i] and states[i][j] or -1
            end
        end
        state[fields + 1] = states[2] and states[2][3] or nil
        return state
    end

    local function latest_us(state)
        return max(state[1], state[4], state[6], state[11]) -- A start, a stamp, a start and a cool-down.
    end

    -- The state with its bucket replaced.
    local function with_bucket(state, bucket)
        local states = split_state(state)
        states[2] = bucket
        return joined(states)
    end

    local adaptive
    adaptive = {
        fields = fields,
        numbers = 14,
        latest_us = latest_us,

        max_lead_us = function(limit)
            return parts[1].max_lead_us(split_limit(limit)[1])
        end,

        load = function(key, limit, now_us)
            local state, bad = read_state(adaptive, key)
            if not state or latest_us(state) <= now_us then
                return state, now_us, false, bad
            end
            local limits, states, is_cut = split_limit(limit), split_state(state), false
            for i, part in ipairs(parts) do
                local found = seen(part, limits[i], states[i], now_us)
                is_cut = is_cut or found ~= states[i]
                states[i] = found
            end
            return is_cut and joined(states) or state, now_us, is_cut
        end,

        peek = function(limit, state, now_us, cost)
            local limits, chosen = split_limit(limit)
            return peek_part(parts[chosen], limits[chosen], split_state(state)[chosen], now_us, cost)
        end,

        take = function(limit, state, now_us, cost)
            local limits, chosen = split_limit(limit)
            local states = split_state(state)
            local after, allowed, remaining, retry_after_us, reset_after_us, level =
                step_part(parts[chosen], 'take', limits[chosen], states[chosen], now_us, cost)
            if after ~= states[chosen] then
                states[chosen] = after
                if allowed == 1 then
                    for i, part in ipairs(parts) do
                        if i ~= chosen then
                            states[i] = step_part(part, 'force', limits[i], states[i], now_us, cost)
                        end
                    end
                end
                state = joined(states)
            end
            return state, allowed, remaining, retry_after_us, reset_after_us, level
        end,

        text = function(limit, state)
            local numbers = { unpack(state, 1, fields) }
            numbers[fields + 1] = limit[1]
            numbers[fields + 2] = state[fields + 1]
            return pack('<' .. string.rep('d', #numbers), unpack(numbers))
        end,

        force = function(limit, state, now_us, cost)
            local limits, chosen = split_limit(limit)
            local states = split_state(state)
            local answers = {}
            for i, part in ipairs(parts) do
                answers[i] = { step_part(part, 'force', limits[i], states[i], now_us, cost) }
                states[i] = answers[i][1]
            end
            return cost > 0 and joined(states) or state, unpack(answers[chosen], 2, 6)
        end,

        mark = function(state)
            local states = split_state(state)
            local bucket = states[2] or { 0, 0 }
            return { states[1] and states[1][1] or 0, bucket[1], bucket[2], states[3] and states[3][1] or 0 }
        end,

        low = function(state)
            return state and state[fields + 1] or 0
        end,

        watch = function(state)
            local bucket, low = parts[2].watch(split_state(state)[2])
            return with_bucket(state, bucket), low
        end,

        unwatch = function(state)
            return state[fields + 1] and with_bucket(state, parts[2].unwatch(split_state(state)[2])) or state
        end,

        left = function(mark, now_us, refunded)
            return parts[2].left({ mark[2], mark[3] }, now_us, refunded)
        end,

        refund = function(limit, state, mark, now_us, cost, low)
            local limits = split_limit(limit)
            local states = split_state(state)
            local marks = { { mark[1] }, { mark[2], mark[3] }, { mark[4] } }
            local given, changed = 0, false
            for i, part in ipairs(parts) do
                local found, at_us = seen(part, limits[i], states[i], now_us)
                local after, gave = part.refund(limits[i], found, marks[i], at_us, cost, low)
                changed = changed or after ~= states[i]
                states[i] = after
                given = i == 2 and gave or given
            end
            return changed and joined(states) or state, given
        end,

        used = function(limit, state, now_us)
            local limits, chosen = split_limit(limit)
            local part = parts[chosen]
            local found, at_us = seen(part, limits[chosen], split_state(state)[chosen], now_us)
            return part.used(limits[chosen], found, at_us)
        end,

        idle_at_us = function(limit, state)
            local limits = split_limit(limit)
            local states = split_state(state)
            local idle_us = 0
            for i, part in ipairs(parts) do
                if states[i] then
                    idle_us = max(idle_us, part.idle_at_us(limits[i], states[i]))
                end
            end
            return idle_us
        end,
    }
    return adaptive
end
