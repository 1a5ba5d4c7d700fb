-- library.lua -- how the text above is kept by a server, as the functions of one library.
--
-- `NAME` holds a hash of the text, so an old and a new version live side by side while nodes are upgraded one by one.
-- While it is loaded a library can do nothing but register functions; the first call works out the rest, for good.
local loaded

local function register(name)
    redis.register_function(NAME .. '_' .. name, function(keys, args)
        loaded = loaded or library()
        return loaded[name](keys, args)
    end)
end

register('take')
register('decide')
register('settle')
register('leave_line')
register('slots')
register('reset')
register('limits')
