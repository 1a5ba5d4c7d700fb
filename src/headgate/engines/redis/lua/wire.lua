-- wire.lua -- how a command parses its arguments. `codec.py` is the other side.
--
-- Everything is checked while it is read, and everything is read before the first write: a number that is not an
-- integer between 0 and 2^53 - 1 ends the call with nothing changed.
local TAKE, PEEK, FORCE, SHADOW, USAGE, PAST = 0, 1, 2, 3, 4, 5
local byte = string.byte
local packed, at -- The text being read, and the position in it.

local function checked(number)
    if is_whole(number) then
        return number
    end
    error('a number is out of range')
end

local function read_byte()
    at = at + 1
    return byte(packed, at - 1)
end

local function read_number()
    at = at + 8
    return checked(unpack_numbers('<d', packed, at - 8))
end

-- A limit and its algorithm.
local function read_rule()
    local algorithm = algorithm_of(read_byte())
    local limit = { unpack_numbers(algorithm.limit_format, packed, at) }
    for i = 1, algorithm.numbers do
        checked(limit[i])
    end
    at = at + 8 * algorithm.numbers
    return { algorithm = algorithm, limit = limit }
end

-- What a reservation took and may still correct; nil if there is none (any more). It ends with its time, or when a key
-- that it took from is reset.
local function read_reservation(name, now_us)
    local record = read('LRANGE', name, 0, -1) or {}
    local ends_us, charges = 0, 1
    if #record > 0 then
        ends_us, charges = cmsgpack.unpack(record[1])
    end
    if ends_us <= now_us then
        return nil
    end
    local steps = { charges = charges or 1 }
    for i = 2, #record do
        local key, number, limit, cost, mark, refunded, resets, watched, charge = unpack(cmsgpack.unpack(record[i]))
        local refunds, bad = read('HMGET', beside(key, 'f'), 'sum', 'resets')
        if bad or not refunds[1] or tonumber(refunds[2] or 0) ~= resets then
            return nil
        end
        steps[i - 1] = { key = key, algorithm = algorithm_of(number), limit = limit, cost = cost, mark = mark,
            refunded = refunded, number = watched and watched > 0 and watched, charge = charge or 1 }
    end
    return steps
end

local function server_time()
    local time = call('TIME')
    return time[1] * 1000000 + time[2]
end

-- Start reading; returns the time of this call: the server's clock, read once, or a test's clock.
local function read_time(text)
    packed, at = text, 1
    local now_us, ttl_floor_ms = read_number(), read_number()
    return now_us == 0 and server_time() or now_us, ttl_floor_ms
end
