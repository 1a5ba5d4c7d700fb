-- watch.lua -- low-water marks: how far a state has fallen since each open reservation. Same as engines/_watch.py.
--
-- They are stored beside the state, in the hash of its refunds:
--   last     the number of the newest charge
--   open     packed: how many charges share the oldest mark, less one; then for each open charge, oldest first, its
--            number, its mark, and when it ends. The newest has no mark but the state's own.
-- The fields `sum` and `resets` are older. Older nodes do not use marks: what they write has none, which counts as a
-- mark of 0, and what they reserved is refunded as they would (`left`). Both can only lose refunds.
local MAX_OPEN = 512
local NO_MARK = 1 / 0
local MARK_BYTES = 24

-- Read into one flat array and written back as a whole, because there may be many. `marks[1]` is how many charges share
-- the oldest, less one; the charge at index p, from 0, has its number, mark and end at 3p + 2, 3p + 3 and 3p + 4.
local function read_marks(refunds)
    local text = call('HGET', refunds, 'open')
    if not text then
        return { 0 }
    end
    local marks = { unpack_numbers('<' .. string.rep('d', #text / 8), text) }
    marks[#marks] = nil -- The position after the last number.
    return marks
end

local function write_marks(refunds, marks)
    if #marks == 1 then
        call('HDEL', refunds, 'open')
    else
        call('HSET', refunds, 'open', pack('<' .. string.rep('d', #marks), unpack(marks)))
    end
end

-- Remove a mark; the previous one gets the smaller of both.
local function drop_mark(marks, place)
    if place == 0 then
        marks[1] = 0
    else
        marks[3 * place] = min(marks[3 * place], marks[3 * place + 3])
    end
    for i = 3 * place + 2, #marks do
        marks[i] = marks[i + 3]
    end
end

-- Make room: drop those that were not settled in time, and if needed let the two oldest share the smaller mark.
local function crowd_together(marks, now_us)
    for place = (#marks - 1) / 3 - 2, 0, -1 do
        if marks[3 * place + 4] <= now_us then
            drop_mark(marks, place)
        end
    end
    if #marks > 1 + 3 * MAX_OPEN then
        local shared, low, ends_us = marks[1], marks[3], marks[4]
        drop_mark(marks, 0)
        marks[1], marks[3], marks[4] = shared + 1, min(low, marks[3]), max(ends_us, marks[4])
    end
end

-- Add a charge; `low` is the mark that the state has kept for the previous one. Returns its number.
local function begin_mark(refunds, low, ends_us, now_us)
    local number = call('HINCRBY', refunds, 'last', 1)
    local text = call('HGET', refunds, 'open') or pack('<d', 0)
    if #text > 8 then
        local mark = min(unpack_numbers('<d', text, #text - 15), low)
        text = string.sub(text, 1, -17) .. pack('<d', mark) .. string.sub(text, -8)
    end
    call('HSET', refunds, 'open', text .. pack('<ddd', number, NO_MARK, ends_us))
    if #text >= 8 + MARK_BYTES * MAX_OPEN then
        local marks = read_marks(refunds)
        crowd_together(marks, now_us)
        write_marks(refunds, marks)
    end
    return number
end

-- The index of a charge's mark, or nil: a shared mark is found under the newest number that shares it.
local function place_of(marks, number)
    local low, high = 0, (#marks - 1) / 3
    while low < high do
        local middle = floor((low + high) / 2)
        if marks[3 * middle + 2] < number then
            low = middle + 1
        else
            high = middle
        end
    end
    return marks[3 * low + 2] and low or nil
end

-- The smallest mark from that index on, not including the state's own.
local function low_since(marks, place)
    local low = NO_MARK
    for i = 3 * place + 3, #marks, 3 do
        low = min(low, marks[i])
    end
    return low
end

local function note_refund(marks, place, given)
    for i = 3 * place + 3, #marks, 3 do
        marks[i] = max(0, marks[i] - given)
    end
end

local function end_mark(marks, place)
    if place == 0 and marks[1] > 0 then
        marks[1] = marks[1] - 1
    else
        drop_mark(marks, place)
    end
end
