-- leave_line.lua -- leave a line. The place is given back once nobody is behind it. Same as engines/_line.py.
--
-- keys[1]  the state of the bucket
-- args[1]  packed: now_us (0 for the server's clock), ttl_floor_ms, the name of the place (when the bucket would have
--          been idle), rule
-- Returns  {1} if it was given back, {0} if somebody is behind it
function commands.leave_line(keys, args)
    local now_us, ttl_floor_ms = read_time(args[1])
    local bucket = algorithm_of(TOKEN_BUCKET)
    local name = read_number()
    local limit = read_rule().limit
    local state, at_us, bad = load_state(bucket, keys[1], limit, now_us, ttl_floor_ms)
    if bad then
        return not_ours(keys[1])
    end
    local places = beside(keys[1], 'p')
    local _, last = ends_of_line(places)
    if not state or not last or not call('HGET', places, text_of(name)) then
        return { 0 }
    end
    local mine = read_spot(places, text_of(name))
    mine.left = 1
    write_spot(places, text_of(name), mine)
    local after, spot = state, nil
    while last do
        spot = read_spot(places, last)
        local put_back = spot.left == 1 and spot.starts_us > now_us and bucket.leave_line(after, spot, at_us)
        if not put_back then
            break
        end
        after = put_back
        last = drop_spot(places, last, spot, 'ahead', 'last')
    end
    if after == state then
        return { 0 }
    end
    save_state(bucket, keys[1], limit, state, after, now_us, ttl_floor_ms)
    local line, ends_us = beside(keys[1], 'l'), last and spot.line_us or 0
    if ends_us > now_us then
        call('SET', line, ends_us, 'PX', ttl_ms(ends_us, now_us, ttl_floor_ms))
    else
        call('DEL', line)
    end
    return { 1 }
end
