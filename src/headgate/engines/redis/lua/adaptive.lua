-- adaptive.lua -- three algorithms, one decides. Same arithmetic as algorithms/adaptive.py.
--
-- limit: limit, then the numbers of sliding_window, token_bucket and exponential_backoff, then which is chosen
--        (1, 2 or 3)
-- state: the three states, one after the other; a part that was never used is all -1
function sources.adaptive()
    local parts = { algorithm_of(SLIDING_WINDOW), algorithm_of(TOKEN_BUCKET), algorithm_of(EXPONENTIAL_BACKOFF) }
    local numbers = 2
    local fields = 0
    for _, part in ipairs(parts) do
        numbers = numbers + part.numbers
        fields = fields + part.fields
    end

    local function split_limit(limit)
        local limits, at = {}, 1
        for i, part in ipairs(parts) do
            limits[i] = { unpack(limit, at + 1, at + part.numbers) }
            at = at + part.numbers
        end
        return limits, limit[at + 1]
    end

    local function split_state(state)
        local states, at = {}, 0
        for i, part in ipairs(parts) do
            if state and state[at + 1] >= 0 then
                states[i] = { unpack(state, at + 1, at + part.fields) }
            end
            at = at + part.fields
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
        return state
    end

    return {
        fields = fields,
        numbers = numbers,

        peek = function(limit, state, now_us, cost)
            local limits, chosen = split_limit(limit)
            return parts[chosen].peek(limits[chosen], split_state(state)[chosen], now_us, cost)
        end,

        take = function(limit, state, now_us, cost)
            local limits, chosen = split_limit(limit)
            local states = split_state(state)
            local after, allowed, remaining, retry_after_us, reset_after_us, level =
                parts[chosen].take(limits[chosen], states[chosen], now_us, cost)
            if after ~= states[chosen] then
                states[chosen] = after
                if allowed == 1 then
                    for i, part in ipairs(parts) do
                        if i ~= chosen then
                            states[i] = part.force(limits[i], states[i], now_us, cost)
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
            return pack('<' .. string.rep('d', fields + 1), unpack(numbers))
        end,

        force = function(limit, state, now_us, cost)
            local limits, chosen = split_limit(limit)
            local states = split_state(state)
            local answers = {}
            for i, part in ipairs(parts) do
                answers[i] = { part.force(limits[i], states[i], now_us, cost) }
                states[i] = answers[i][1]
            end
            return cost > 0 and joined(states) or state, unpack(answers[chosen], 2, 6)
        end,

        mark = function(state)
            local states = split_state(state)
            local bucket = states[2] or { 0, 0 }
            return { states[1] and states[1][1] or 0, bucket[1], bucket[2], states[3] and states[3][1] or 0 }
        end,

        refund = function(limit, state, mark, now_us, cost, refunded)
            local limits = split_limit(limit)
            local states = split_state(state)
            local marks = { { mark[1] }, { mark[2], mark[3] }, { mark[4] } }
            local given, changed = 0, false
            for i, part in ipairs(parts) do
                local after, gave = part.refund(limits[i], states[i], marks[i], now_us, cost, refunded)
                changed = changed or after ~= states[i]
                states[i] = after
                given = i == 2 and gave or given
            end
            return changed and joined(states) or state, given
        end,

        used = function(limit, state, now_us)
            local limits, chosen = split_limit(limit)
            return parts[chosen].used(limits[chosen], split_state(state)[chosen], now_us)
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
end
