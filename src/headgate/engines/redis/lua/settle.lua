-- settle.lua -- correct reservations to the actual cost, each once.
--
-- keys     the record of each reservation: when it ends and its number of charges, then for each step its key,
--          algorithm, limit, cost, mark, the refunds and resets of that key at that time, the number of its low-water
--          mark (or none) and the index of its charge. The keys named there are in the same slot as the record.
-- args[1]  packed: now_us (0 for the server's clock), ttl_floor_ms, how long to refuse a name if there is no such
--          reservation (0: not at all), then the actual cost. For one reservation: one for all charges, or one for
--          each. For several: one for each reservation.
-- Returns  for each reservation 1 if it was settled, 0 if there is no such reservation (any more): it was settled, its
--          time is over, or a key that it took from was reset; -1 if it has another number of charges. A state that is
--          not ours is an error, and -3 where there are several reservations.
local function refund(step, state, marks, place, actual, now_us)
    local algorithm, refunds = step.algorithm, beside(step.key, 'f')
    local low = 0
    if place then
        low = min(low_since(marks, place), algorithm.low(state))
    elseif marks and not step.number then -- Reserved by a node that does not use marks.
        place = 0
        low = algorithm.left(step.mark, now_us, tonumber(call('HGET', refunds, 'sum')) - step.refunded)
    end
    local after, given = algorithm.refund(step.limit, state, step.mark, now_us, step.cost - actual, low)
    if given > 0 then
        call('HINCRBY', refunds, 'sum', string.format('%.0f', given))
        if place then
            note_refund(marks, place, given)
        end
    end
    return after
end

-- A step's state after settling it at the cost `used`. Its mark is merged into the previous one, and after the last
-- one the state is not watched any more.
local function settled(step, state, used, now_us)
    local refunds = beside(step.key, 'f')
    local marks = step.algorithm.watch and read_marks(refunds)
    local place = marks and step.number and place_of(marks, step.number)
    local after = state
    if used > step.cost then
        after = step.algorithm.force(step.limit, state, now_us, used - step.cost)
    elseif used < step.cost and not step.waits then -- Otherwise those in line already know when to start.
        after = refund(step, state, marks, place, used, now_us)
    end
    if place then
        end_mark(marks, place)
    end
    if marks then
        write_marks(refunds, marks)
    end
    return place and #marks == 1 and after and step.algorithm.unwatch(after) or after
end

-- What is returned for one reservation, or the error.
local function settle_one(record, actual, refuse_us, now_us, ttl_floor_ms)
    local steps = read_reservation(record, now_us)
    if not steps then
        call('DEL', record)
        if refuse_us > 0 then -- The request may still be in flight: it will find its name taken.
            call('RPUSH', record, cmsgpack.pack(now_us + refuse_us))
            call('PEXPIRE', record, ttl_ms(now_us + refuse_us, now_us, 0))
        end
        return 0
    elseif #steps == 0 then
        return 0
    elseif #actual > 1 and #actual ~= steps.charges then
        return -1
    end
    for _, step in ipairs(steps) do -- Everything is read before the first write.
        local bad
        step.state, step.at_us, bad = load_state(step.algorithm, step.key, step.limit, now_us, ttl_floor_ms)
        if bad then
            return not_ours(step.key)
        end
        step.waits = (tonumber(read('GET', beside(step.key, 'l')) or 0) or 0) > now_us
    end

    call('DEL', record)
    local written = {}
    for _, step in ipairs(steps) do
        local key, algorithm, limit, state, at_us = step.key, step.algorithm, step.limit, step.state, step.at_us
        local used = actual[step.charge] or actual[1]
        if written[key] then
            state, at_us = load_state(algorithm, key, limit, now_us, ttl_floor_ms)
        end
        local after = settled(step, state, used, at_us)
        if after ~= state then
            save_state(algorithm, key, limit, state, after, now_us, ttl_floor_ms)
            written[key] = true
        end
    end
    return 1
end

function commands.settle(keys, args)
    local now_us, ttl_floor_ms = read_time(args[1])
    local refuse_us, actual = read_number(), {}
    while at <= #packed do
        actual[#actual + 1] = read_number()
    end
    if #keys == 1 then
        local found = settle_one(keys[1], actual, refuse_us, now_us, ttl_floor_ms)
        return type(found) == 'number' and { found } or found
    elseif #keys ~= #actual then
        error('the numbers do not fit the reservations')
    end
    local reply = {}
    for i, record in ipairs(keys) do
        local found = settle_one(record, { actual[i] }, refuse_us, now_us, ttl_floor_ms)
        reply[i] = type(found) == 'number' and found or NOT_OURS
    end
    return reply
end
