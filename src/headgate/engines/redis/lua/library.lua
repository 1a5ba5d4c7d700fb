-- library.lua -- registers the code above as the functions of one library.
--
-- `NAME` contains a hash of the text, so an old and a new version coexist while nodes are upgraded one by one. While it
-- is being loaded, a library can only register functions; the rest is set up once, on the first call.
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
