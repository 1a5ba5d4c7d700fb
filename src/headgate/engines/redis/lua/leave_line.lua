-- leave_line.lua -- give back a place in line, if it is the last.
--
-- keys[1]  the state of the bucket
-- args[1]  packed: now_us (0 for the server's clock), ttl_floor_ms, stamp_us and backlog of the place, cost, rule
-- Returns  {1} when it was given back, {0} when somebody stands behind it
function commands.leave_line(keys, args)
    local now_us, ttl_floor_ms = read_time(args[1])
    local bucket = algorithm_of(TOKEN_BUCKET)
    local mark = { read_number(), read_number() }
    local cost = read_number()
    local limit = read_rule().limit
    local state, bad = load_state(bucket, keys[1])
    if bad then
        return not_ours(keys[1])
    end
    local after = bucket.leave_line(limit, state, mark, now_us, cost)
    if after == state then
        return { 0 }
    end
    save_state(bucket, keys[1], limit, state, after, now_us, ttl_floor_ms)
    local line, ends_us = beside(keys[1], 'l'), bucket.line_ends_us(limit, after, now_us)
    if ends_us > 0 then -- Others still stand there: the line ends where the last of them starts.
        call('SET', line, ends_us, 'PX', ttl_ms(ends_us, now_us, ttl_floor_ms))
    else
        call('DEL', line)
    end
    return { 1 }
end
