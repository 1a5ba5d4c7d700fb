-- line.lua -- who waits for a bucket. Same as engines/_line.py.
--
-- Beside the state lie when the last one in line may start ('l') and a hash of all places ('p'): a list in which each
-- knows its neighbours, and the fields 'first' and 'last'. The name of a place is when the bucket will be idle, which
-- is later for each of them. A place is packed: when it starts, when all up to it have started, the state that it led
-- to, the state before with its low-water mark (-1 for none), the names before and behind it (0 for none), and whether
-- its holder has left.
local SPOT = '<dddddddddd'

local function read_spot(places, name)
    local spot = {}
    spot.starts_us, spot.line_us, spot.stamp_us, spot.backlog, spot.before_us, spot.before, spot.low, spot.ahead,
        spot.behind, spot.left = unpack_numbers(SPOT, call('HGET', places, name))
    return spot
end

local function write_spot(places, name, spot)
    call('HSET', places, name, pack(SPOT, spot.starts_us, spot.line_us, spot.stamp_us, spot.backlog, spot.before_us,
        spot.before, spot.low, spot.ahead, spot.behind, spot.left))
end

-- The names of the first and of the last in line, as text; nil when nobody is.
local function ends_of_line(places)
    local ends, bad = read('HMGET', places, 'first', 'last')
    if bad or not ends[1] or not ends[2] then
        return nil, nil
    end
    return ends[1], ends[2]
end

local function text_of(name)
    return name > 0 and string.format('%.0f', name) or nil
end

-- Take the first or the last one out of the line, whose neighbour is then the first or the last; returns its name.
local function drop_spot(places, name, spot, neighbour, where)
    call('HDEL', places, name)
    local next_one = text_of(spot[neighbour])
    if next_one then
        local other = read_spot(places, next_one)
        other[neighbour == 'behind' and 'ahead' or 'behind'] = 0
        write_spot(places, next_one, other)
        call('HSET', places, where, next_one)
    else
        call('HDEL', places, 'first', 'last')
    end
    return next_one
end

-- Somebody has booked a place from `before` to `after`.
local function stand_in_line(key, before, after, starts_us, ends_us, now_us, ttl_floor_ms)
    local line, places, name = beside(key, 'l'), beside(key, 'p'), text_of(ends_us)
    local line_us = max(tonumber(read('GET', line) or 0) or 0, starts_us)
    local ttl = ttl_ms(line_us, now_us, ttl_floor_ms)
    call('SET', line, line_us, 'PX', ttl)
    local first, last = ends_of_line(places)
    while first do -- Those whose time has come.
        local spot = read_spot(places, first)
        if spot.starts_us > now_us then
            break
        end
        first = drop_spot(places, first, spot, 'behind', 'first')
    end
    if first then
        local spot = read_spot(places, last)
        spot.behind = ends_us
        write_spot(places, last, spot)
    else
        call('DEL', places)
    end
    write_spot(places, name, {
        starts_us = starts_us, line_us = line_us, stamp_us = after[1], backlog = after[2], before_us = before[1],
        before = before[2], low = before[3] or -1, ahead = first and tonumber(last) or 0, behind = 0, left = 0,
    })
    call('HSET', places, 'first', first or name, 'last', name)
    call('PEXPIRE', places, ttl)
end
