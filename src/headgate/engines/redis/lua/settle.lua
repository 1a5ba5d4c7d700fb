-- settle.lua -- correct a reservation to what was really used, once.
--
-- KEYS[1]  the reservation's record: when it ends, then for each step its key, algorithm, limit, cost, mark and what
--          refunds of that key had given back by then. The keys named there are in the same slot as the record.
-- ARGV[1]  packed: now_us (0 for the server's clock), ttl_floor_ms, actual
-- Returns  {1} when it was settled, {0} when there is no such reservation (any more)
local now_us, ttl_floor_ms = read_time()
local actual = read_number()
local record = call('LRANGE', KEYS[1], 0, -1)
if #record == 0 then
    return { 0 }
end
call('DEL', KEYS[1])
if cmsgpack.unpack(record[1]) <= now_us then
    return { 0 }
end
for i = 2, #record do
    local key, number, limit, cost, mark, refunded = unpack(cmsgpack.unpack(record[i]))
    local algorithm = algorithm_of(number)
    local state = load_state(algorithm, key, limit, now_us)
    local after, given = state, 0
    local line_us = tonumber(call('GET', beside(key, 'l')) or 0)
    if actual > cost then
        after = algorithm.force(limit, state, now_us, actual - cost)
    elseif line_us <= now_us then -- Else those in line have been told when to start.
        local refunds = beside(key, 'f')
        local since = tonumber(call('GET', refunds) or 0) - refunded
        after, given = algorithm.refund(limit, state, mark, now_us, cost - actual, since)
        if given > 0 and call('EXISTS', refunds) == 1 then
            call('INCRBY', refunds, string.format('%.0f', given))
        end
    end
    if after ~= state then
        save_state(algorithm, key, limit, after, now_us, ttl_floor_ms)
    end
end
return { 1 }
