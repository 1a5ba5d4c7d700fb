-- limits.lua -- the limits that states were last counted with, for listing keys.
--
-- keys     the states
-- args[1]  packed: the algorithm of each
-- Returns  {limit, …}, and -1 where there is no state (any more), or not one of ours
function commands.limits(keys, args)
    packed, at = args[1], 1
    local limits = {}
    for i, key in ipairs(keys) do
        local algorithm = algorithm_of(read_byte())
        local limit
        if algorithm.stored_limit then
            limit = algorithm.stored_limit(key)
        else
            local text = read('GET', key)
            if text and #text >= 8 * (algorithm.fields + 1) then
                limit = unpack_numbers('<d', text, 8 * algorithm.fields + 1)
            end
        end
        if limit and is_whole(limit) then
            limits[i] = limit
        else
            limits[i] = -1
        end
    end
    return limits
end
