-- reset.lua -- forget a key, its line, and its reservations.
--
-- keys[1]  the state
-- Returns  {1}
function commands.reset(keys)
    local refunds = beside(keys[1], 'f')
    call('DEL', keys[1], beside(keys[1], 'l'), beside(keys[1], 'p'), beside(keys[1], 'e'))
    -- While somebody may still settle, the refunds exist, and count the resets of the key.
    local _, bad = read('HGET', refunds, 'sum')
    if bad then
        call('DEL', refunds)
    elseif call('EXISTS', refunds) == 1 then
        call('HINCRBY', refunds, 'resets', 1)
        call('HDEL', refunds, 'open')
    end
    return { 1 }
end
