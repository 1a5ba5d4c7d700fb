-- line.lua -- the line of waiting requests of a bucket. Same as engines/_line.py.
--
-- Beside the state are the time when the last in line may start ('l') and a hash of all places ('p'): a linked list,
-- with the fields 'first' and 'last'. The name of a place is the time when the bucket will be idle, which increases
-- along the line. A place is packed: its start, when everyone up to it has started, the state after it, the state
-- before it with its low-water mark (-1 for none), the names of the previous and the next place (0 for none), and
-- whether its holder has left.
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

-- The names of the first and the last place, as text; nil if the line is empty.
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

-- Remove the first or the last place, whose neighbour takes over; returns the neighbour's name.
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

-- Add a place that leads from `before` to `after`.
local function stand_in_line(key, before, after, starts_us, ends_us, now_us, ttl_floor_ms)
    local line, places, name = beside(key, 'l'), beside(key, 'p'), text_of(ends_us)
    local line_us = max(tonumber(read('GET', line) or 0) or 0, starts_us)
    local ttl = ttl_ms(line_us, now_us, ttl_floor_ms)
    call('SET', line, line_us, 'PX', ttl)
    local first, last = ends_of_line(places)
    while first do -- Drop places whose time has come.
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
