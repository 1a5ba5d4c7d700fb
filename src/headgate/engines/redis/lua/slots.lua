-- slots.lua -- renew or release what a token holds.
--
-- keys[1]  the state of the slots
-- keys[2]  their expiry
-- args[1]  packed: now_us (0 for the server's clock), ttl_floor_ms, 1 to renew or 0 to release, rule
-- args[2]  the token
-- Returns  {1} if the token held something, else {0}
function commands.slots(keys, args)
    local now_us, ttl_floor_ms = read_time(args[1])
    local slots = algorithm_of(CONCURRENCY)
    local renewing = read_byte() == 1
    local limit = read_rule().limit
    local token = args[2]
    local state, at_us, bad = load_state(slots, keys[1], limit, now_us, ttl_floor_ms)
    if bad then
        return not_ours(keys[1])
    end
    local after
    if renewing then
        after = slots.renew(limit, state, at_us, token)
    else
        after = slots.release(state, token)
    end
    if after == state then
        return { 0 }
    end
    save_state(slots, keys[1], limit, state, after, now_us, ttl_floor_ms)
    return { 1 }
end
