-- settle.lua -- correct a reservation to what was really used, once.
--
-- keys[1]  the reservation's record: when it ends, then for each step its key, algorithm, limit, cost, mark, and what
--          refunds of that key had given back and how often it had been reset by then. The keys named there are in
--          the same slot as the record.
-- args[1]  packed: now_us (0 for the server's clock), ttl_floor_ms, actual
-- Returns  {1} when it was settled, {0} when there is no such reservation (any more): it was settled, its time is
--          over, or a key that it took from has been reset
function commands.settle(keys, args)
    local now_us, ttl_floor_ms = read_time(args[1])
    local actual = read_number()
    local steps = read_reservation(keys[1], now_us)
    if not steps then
        call('DEL', keys[1])
        return { 0 }
    end
    for _, step in ipairs(steps) do -- Everything is read before the first write.
        local bad
        step.state, bad = load_state(step.algorithm, step.key, step.limit, now_us)
        if bad then
            return not_ours(step.key)
        end
        step.line_us = tonumber(read('GET', beside(step.key, 'l')) or 0) or 0
    end

    call('DEL', keys[1])
    local written = {}
    for _, step in ipairs(steps) do
        local key, algorithm, limit, state = step.key, step.algorithm, step.limit, step.state
        if written[key] then
            state = load_state(algorithm, key, limit, now_us)
        end
        local after, given = state, 0
        if actual > step.cost then
            after = algorithm.force(limit, state, now_us, actual - step.cost)
        elseif actual < step.cost and step.line_us <= now_us then -- Else those in line have been told when to start.
            local refunds = beside(key, 'f')
            local since = tonumber(call('HGET', refunds, 'sum')) - step.refunded
            after, given = algorithm.refund(limit, state, step.mark, now_us, step.cost - actual, since)
            if given > 0 then
                call('HINCRBY', refunds, 'sum', string.format('%.0f', given))
            end
        end
        if after ~= state then
            save_state(algorithm, key, limit, state, after, now_us, ttl_floor_ms)
            written[key] = true
        end
    end
    return { 1 }
end
