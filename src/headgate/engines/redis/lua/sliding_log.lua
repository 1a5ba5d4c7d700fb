-- sliding_log.lua -- every request of one window. Same answers as algorithms/sliding_log.py.
--
-- limit: limit, window_us
-- state: a string of requests in order of time, 32 bytes each: at_us, cost, and, as of when it was written, the total
--        cost in the window, how many requests at the front had left it, and the limit. Only the last request's values
--        of these three count. A short log is rewritten with every request, which drops what has left the window; a
--        long one is appended to until more than half of it has left.
--
-- In a call, a state is what `load` read from the string at `now_us`, and what `save` has to add to it:
--   key, start     the string, and how many requests at its front have left the window
--   text           the requests in the window, if loaded: the log is short, or had to be changed
--   total          the costs in the window
--   newest_us      when the last request came: the key's time. A refund or a past charge leaves a request without
--                  cost, because what had left the window by then is gone
--   charged_us     when the last request with a cost came
--   added          costs to be added at `newest_us`
function sources.sliding_log()
    local FORMAT, SIZE = '<dddI4I4', 32
    local SHORT, CHUNK = 8, 16
    local LAST_SHORT = tostring(-SIZE * SHORT) -- A string, because numbers are formatted again for every command.
    local EMPTY = { start = 0, text = '', total = 0, newest_us = 0, charged_us = 0, added = {} }
    local sub = string.sub

    -- Time and cost of the request at this index in a text, from 0; nil after the end.
    local function request_at(text, place)
        if SIZE * place < #text then
            local at_us, cost = unpack_numbers('<dd', text, SIZE * place + 1)
            return at_us, cost
        end
    end

    -- The requests of a log from this index on, `count` of them or all.
    local function requests_from(key, place, count)
        return call('GETRANGE', key, SIZE * place, count and SIZE * (place + count) - 1 or -1)
    end

    local function live_text(state)
        return state.text or requests_from(state.key, state.start)
    end

    -- Time and cost of a request by its index in the window. For a long log, the first is read alone, because usually
    -- that is enough, and the others a few at a time.
    local function request_of(state, place)
        if state.text then
            return request_at(state.text, place)
        end
        local number = state.start + place
        local chunk, start = state.chunk, state.chunk_start
        if not chunk or number < start or SIZE * (number - start) >= #chunk then
            state.chunk, state.chunk_start = requests_from(state.key, number, chunk and CHUNK or 1), number
        end
        return request_at(state.chunk, number - state.chunk_start)
    end

    -- The text with requests ahead of now set to now.
    local function cut(text, now_us)
        local place = #text / SIZE
        local tail = {}
        while place > 0 and request_at(text, place - 1) > now_us do
            place = place - 1
            local _, cost = request_at(text, place)
            table.insert(tail, 1, pack(FORMAT, now_us, cost, 0, 0, 0))
        end
        return sub(text, 1, SIZE * place) .. table.concat(tail)
    end

    -- The index of the first of `count` requests that is not older than a moment.
    local function first_not_before(text, moment_us, count)
        local low, high = 0, count
        while low < high do
            local middle = floor((low + high) / 2)
            if request_at(text, middle) < moment_us then
                low = middle + 1
            else
                high = middle
            end
        end
        return low
    end

    -- The text without `cost` units from the time `mark_us`, and how many of those there were.
    local function lowered(text, mark_us, cost)
        local low = first_not_before(text, mark_us, #text / SIZE)
        local place, given, kept = low, 0, {}
        while place < #text / SIZE and request_at(text, place) == mark_us do
            local _, left = request_at(text, place)
            local part = min(cost - given, left)
            given = given + part
            if left > part then
                kept[#kept + 1] = pack(FORMAT, mark_us, left - part, 0, 0, 0)
            end
            place = place + 1
        end
        return sub(text, 1, SIZE * low) .. table.concat(kept) .. sub(text, SIZE * place + 1), given
    end

    -- The text with `cost` units from the time `came_us`, and a mark at its end for the key's time.
    local function inserted(text, came_us, cost, now_us)
        local count = #text / SIZE
        while count > 0 and select(2, request_at(text, count - 1)) == 0 do
            count = count - 1 -- A new mark replaces an old one.
        end
        local place = first_not_before(text, came_us + 1, count)
        return sub(text, 1, SIZE * place) .. pack(FORMAT, came_us, cost, 0, 0, 0)
            .. sub(text, SIZE * place + 1, SIZE * count) .. pack(FORMAT, now_us, 0, 0, 0, 0)
    end

    -- When the last request with a cost came; 0 if there is none.
    local function last_charge_us(text)
        for place = #text / SIZE - 1, 0, -1 do
            local at_us, cost = request_at(text, place)
            if cost > 0 then
                return at_us
            end
        end
        return 0
    end

    -- Store a log of exactly these requests.
    local function write(key, limit, text, total, ttl)
        local at_us, cost = request_at(text, #text / SIZE - 1)
        call('SET', key, sub(text, 1, -SIZE - 1) .. pack(FORMAT, at_us, cost, total, 0, limit[1]), 'PX', ttl)
    end

    local function changed(state, change)
        local copy = {}
        for name, value in pairs(state or EMPTY) do
            copy[name] = value
        end
        for name, value in pairs(change) do
            copy[name] = value
        end
        return copy
    end

    local function with_cost(state, now_us, cost)
        local before = state or EMPTY
        local added = { unpack(before.added) }
        added[#added + 1] = cost
        return { key = before.key, start = before.start, text = before.text, total = before.total + cost,
            newest_us = now_us, charged_us = now_us, added = added }
    end

    local function reset_after(limit, state, now_us)
        return state and state.total > 0 and state.charged_us + limit[2] - now_us or 0
    end

    -- When enough of the oldest have left; costs that are yet to be added come last.
    local function retry_after(limit, state, now_us, cost)
        local over = state.total - limit[1] + cost -- In this order: the sum may be too large for a double.
        local place = 0
        local at_us, its_cost = request_of(state, place)
        while at_us and over > its_cost do
            over, place = over - its_cost, place + 1
            at_us, its_cost = request_of(state, place)
        end
        return at_us and at_us + limit[2] - now_us or limit[2]
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

    local function max_lead_us(limit)
        return min(limit[2], MAX_LEAD_US)
    end

    return {
        fields = 0,
        numbers = 2,
        peek = peek,
        max_lead_us = max_lead_us,

        latest_us = function(state)
            return state.newest_us
        end,

        load = function(key, limit, now_us)
            local tail, bad = read('GETRANGE', key, LAST_SHORT, '-1')
            if bad or #tail == 0 then
                return nil, now_us, false, bad
            end
            local count = #tail / SIZE
            if count ~= floor(count) then
                return nil, now_us, false, true
            end
            local newest_us, cost, total, start = unpack_numbers(FORMAT, tail, #tail - SIZE + 1)
            if not (is_whole(newest_us) and is_whole(cost) and is_whole(total)) then
                return nil, now_us, false, true
            end
            local at_us, is_cut = moment(newest_us, now_us, max_lead_us(limit))
            local state = { key = key, start = start, newest_us = newest_us, charged_us = newest_us, added = {} }
            if count < SHORT then -- Everything has been read.
                state.text = sub(tail, SIZE * start + 1)
            end
            local gone, gone_us = 0, at_us - limit[2]
            local came_us, its_cost = request_of(state, gone)
            while came_us and came_us <= gone_us do
                gone, total = gone + 1, total - its_cost
                came_us, its_cost = request_of(state, gone)
            end
            if state.text then
                state.text = sub(state.text, SIZE * gone + 1)
            end
            state.start, state.total = start + gone, total
            if is_cut then
                state.text, state.newest_us, state.charged_us = cut(live_text(state), now_us), now_us, now_us
            end
            if cost == 0 then
                state.charged_us = last_charge_us(live_text(state))
            end
            return state, at_us, is_cut
        end,

        stored_limit = function(key)
            local text = read('GETRANGE', key, -4, -1)
            return text and #text == 4 and unpack_numbers('<I4', text) or nil
        end,

        save = function(key, limit, state, ttl)
            local start = state.text and 0 or state.start
            local news = ''
            for _, cost in ipairs(state.added) do
                news = news .. pack(FORMAT, state.newest_us, cost, state.total, start, limit[1])
            end
            if state.text and news ~= '' then
                call('SET', key, state.text .. news, 'PX', ttl)
            elseif state.text then
                write(key, limit, state.text, state.total, ttl)
            elseif call('APPEND', key, news) < 2 * SIZE * state.start then
                write(key, limit, requests_from(key, state.start), state.total, ttl)
            else
                call('PEXPIRE', key, ttl)
            end
        end,

        take = function(limit, state, now_us, cost)
            local total = state and state.total or 0
            if total + cost <= limit[1] then
                if cost > 0 then
                    state = with_cost(state, now_us, cost)
                end
                return state, 1, limit[1] - total - cost, 0, reset_after(limit, state, now_us), 0
            end
            return state, denied(limit, state, now_us, cost)
        end,

        force = function(limit, state, now_us, cost)
            if cost > 0 then
                state = with_cost(state, now_us, min(cost, MAX_EXACT - (state and state.total or 0)))
            end
            return state, 1, max(0, limit[1] - (state and state.total or 0)), 0, reset_after(limit, state, now_us), 0
        end,

        force_past = function(limit, state, now_us, cost, came_us)
            if cost > 0 and came_us > now_us - limit[2] then
                local before = state or EMPTY
                local text = live_text(before)
                for _, added in ipairs(before.added) do
                    text = text .. pack(FORMAT, before.newest_us, added, 0, 0, 0)
                end
                cost = min(cost, MAX_EXACT - before.total)
                text = inserted(text, came_us, cost, now_us)
                state = changed(before, {
                    text = text,
                    total = before.total + cost,
                    newest_us = now_us,
                    charged_us = last_charge_us(text),
                    added = {},
                })
            end
            return state, 1, max(0, limit[1] - (state and state.total or 0)), 0, reset_after(limit, state, now_us), 0
        end,

        mark = function(state)
            return { state.newest_us }
        end,

        refund = function(_, state, mark, now_us, cost)
            if not state then
                return state, 0
            end
            local text, given = lowered(live_text(state), mark[1], cost)
            if given == 0 then
                return state, 0
            end
            return changed(state, {
                text = text .. pack(FORMAT, now_us, 0, 0, 0, 0),
                total = state.total - given,
                newest_us = now_us,
                charged_us = last_charge_us(text),
            }), given
        end,

        used = function(_, state)
            return state and state.total or 0
        end,

        idle_at_us = function(limit, state)
            return state.total > 0 and state.charged_us + limit[2] or 0
        end,
    }
end
