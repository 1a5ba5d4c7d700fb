-- decide.lua -- decide a batch of requests, each all or nothing.
--
-- keys     the state of each step, in order, then the extra keys of those that have any
-- args[1]  packed: now_us (0 for the server's clock), ttl_floor_ms, flags (1: with versions)
--          number of rules, then for each its algorithm and the numbers of its limit
--          number of requests, then for each: number of steps, options, [wait_us], [reserve_us], and for each step the
--          index of its rule, its kind, its cost, for a past charge its time, and in a reservation the index of its
--          charge. Most requests take one unit of one limit: for them the number of steps is 0, and only the index of
--          the rule follows.
-- args[2…] for each request that has one, the token it holds slots under, then the key of its reservation's record, if
--          it reserves
--          A request with the option LOOK is answered as if it had been withdrawn, and changes nothing.
-- Returns  {now_us, then for each step allowed, remaining, retry_after_us, reset_after_us, level}. allowed is -1 if the
--          calendar sent along is out of date, -2 if the reservation's name is taken, and -3 if what is stored is not a
--          state of ours.
--          With versions, one more number per step, after all of these: how many steps its state has decided.
local WAIT, RESERVE, TOKEN, LOOK = 1, 2, 4, 8
local TAKEN = -2
local keys, args, rules, next_text, next_key, besides -- Of the current call.

local function read_text()
    next_text = next_text + 1
    return args[next_text - 1]
end

local function read_step()
    local step = { rule = rules[read_byte()], kind = read_byte(), cost = read_number(), key = keys[next_key] }
    if not step.rule or step.kind > PAST then
        error('a step makes no sense')
    end
    if step.kind == PAST then
        step.came_us = read_number()
    end
    next_key, besides = next_key + 1, besides + (step.rule.algorithm.beside or 0)
    return step
end

local function read_request(steps)
    local options = read_byte()
    local request = { wait_us = 0, reserve_us = 0 }
    if options % 2 >= WAIT then
        request.wait_us = read_number()
    end
    if options % 4 >= RESERVE then
        request.reserve_us = read_number()
    end
    if options % 8 >= TOKEN then
        request.token = read_text()
    end
    if request.reserve_us > 0 then
        request.record = read_text()
    end
    request.look = options % 16 >= LOOK
    for i = 1, steps do
        request[i] = read_step()
        if request.record then
            request[i].charge = read_byte()
        end
    end
    return request
end

-- The state after a step, and the answer, with times counted from `at_us`.
local function evaluate_at(at_us, step, request, state)
    local algorithm, limit, cost = step.rule.algorithm, step.rule.limit, step.cost
    if step.kind == PEEK then
        return state, algorithm.peek(limit, state, at_us, cost)
    elseif step.kind == PAST and algorithm.force_past and step.came_us < at_us then
        return algorithm.force_past(limit, state, at_us, cost, step.came_us)
    elseif step.kind == FORCE or step.kind == PAST then
        return algorithm.force(limit, state, at_us, cost)
    elseif step.kind == USAGE then
        local _, remaining, retry_after_us, reset_after_us, level = algorithm.peek(limit, state, at_us, cost)
        return state, algorithm.used(limit, state, at_us), remaining, retry_after_us, reset_after_us, level
    elseif algorithm.hold and request.token then
        return algorithm.hold(limit, state, at_us, cost, request.token)
    elseif algorithm.line_up and request.wait_us > 0 then
        return algorithm.line_up(limit, state, at_us, cost, request.wait_us - (at_us - now_us))
    end
    return algorithm.take(limit, state, at_us, cost)
end

local function evaluate(step, request, state)
    local after, allowed, remaining, retry_after_us, reset_after_us, level =
        evaluate_at(step.at_us, step, request, state)
    return after, later(step.at_us - now_us, allowed, remaining, retry_after_us, reset_after_us, level)
end

-- Compute every step on top of the previous ones, and write nothing. True if all of them fit.
local function try(request)
    local pending, passed = {}, true
    for _, step in ipairs(request) do
        if not step.first then
            step.before = pending[step.key]
        end
        step.after, step[1], step[2], step[3], step[4], step[5] = evaluate(step, request, step.before)
        pending[step.key] = step.before
        if request.record and step[1] == 1 and step.kind ~= PEEK and step.cost > 0 and step.rule.algorithm.watch then
            step.after, step.low = step.rule.algorithm.watch(step.after)
        end
        if step[1] == 1 then
            pending[step.key] = step.after
        elseif step.kind ~= SHADOW and step.kind ~= USAGE then
            passed = false
        end
    end
    return passed
end

local function save(step)
    local loaded = step.first and step.before or nil -- Otherwise it may be a result of this request.
    save_state(step.rule.algorithm, step.key, step.rule.limit, loaded, step.after, now_us, ttl_floor_ms)
end

local function reserve(request)
    local ttl = ttl_ms(now_us + request.reserve_us, now_us, ttl_floor_ms)
    local record = { cmsgpack.pack(now_us + request.reserve_us, request[#request].charge) }
    local ends_us = now_us + request.reserve_us
    for _, step in ipairs(request) do
        if step[1] == 1 and step.kind ~= PEEK then -- Also a cost of 0: the actual cost is charged when it is settled.
            local refunds = beside(step.key, 'f')
            call('HSETNX', refunds, 'sum', '0')
            if call('PTTL', refunds) < ttl then
                call('PEXPIRE', refunds, ttl)
            end
            local algorithm = step.rule.algorithm
            local sofar = call('HMGET', refunds, 'sum', 'resets')
            local watched = step.low and begin_mark(refunds, step.low, ends_us, now_us) or 0
            record[#record + 1] = cmsgpack.pack({
                step.key, algorithm.number, step.rule.limit, step.cost, step.cost > 0 and algorithm.mark(step.after),
                tonumber(sofar[1]), tonumber(sofar[2] or 0), watched, step.charge,
            })
        end
    end
    if request.is_over then -- An ended reservation had the same name.
        call('DEL', request.record)
    end
    call('RPUSH', request.record, unpack(record))
    call('PEXPIRE', request.record, ttl)
end

local function grant(request)
    local last = {} -- A key that was charged twice is saved once, after its last step.
    for _, step in ipairs(request) do
        if step.after ~= step.before then
            last[step.key] = step
        end
    end
    for _, step in ipairs(request) do
        if last[step.key] == step then
            save(step)
        end
        if request.wait_us > 0 and step[1] == 1 and step[3] > 0 and step.cost > 0 then
            stand_in_line(step.key, step.before, step.after, now_us + step[3], now_us + step[4], now_us, ttl_floor_ms)
        end
    end
    if request.reserve_us > 0 then
        reserve(request)
    end
end

-- A request denied even on unused keys can never pass: several charges of one key may add up to too much.
local function tell_hopeless(request)
    local pending = {}
    for _, step in ipairs(request) do
        local after, allowed = evaluate_at(now_us, step, request, pending[step.key])
        if allowed == 1 then
            pending[step.key] = after
        elseif step[1] == 0 then
            step[3] = NEVER
        end
    end
end

-- Take nothing: answers say what they would have been, and only a denial may be recorded.
local function withdraw(request)
    if request.repeats then
        tell_hopeless(request)
    end
    for _, step in ipairs(request) do
        if step[1] == 1 then
            local peek, at_us = step.rule.algorithm.peek, step.at_us
            step[1], step[2], step[3], step[4], step[5] =
                later(at_us - now_us, peek(step.rule.limit, step.before, at_us, step.cost))
        elseif step.first and step.after ~= step.before and not request.look then
            save(step)
        end
    end
end

-- Load the state of every key; true if something stored there is not ours.
local function load(request)
    local moments = {} -- By key, the same for all of its steps.
    for _, step in ipairs(request) do
        local bad, bad_beside
        step.first = not moments[step.key]
        request.repeats = request.repeats or not step.first
        if step.first then
            step.before, moments[step.key], bad =
                load_state(step.rule.algorithm, step.key, step.rule.limit, now_us, ttl_floor_ms)
        end
        step.at_us = moments[step.key]
        if request.record then
            _, bad_beside = read('HGET', beside(step.key, 'f'), 'sum')
        end
        if bad or bad_beside then
            return true
        end
    end
end

local function refusal(request)
    if request.record and call('EXISTS', request.record) == 1 then
        if read_reservation(request.record, now_us) then
            return TAKEN
        end
        request.is_over = true
    end
    for _, step in ipairs(request) do
        if is_stale(step.rule) then
            return STALE
        end
    end
    if load(request) then
        return NOT_OURS
    end
end

local function decide_carefully(request)
    local refused = refusal(request)
    if refused then
        for _, step in ipairs(request) do
            step[1], step[2], step[3], step[4], step[5] = refused, 0, 0, 0, 0
        end
    elseif try(request) and not request.look then
        grant(request)
    else
        withdraw(request)
    end
end

-- Read every request before the first is decided. One unit of one limit is just the index of its rule.
local function read_requests()
    local requests = {}
    for i = 1, read_byte() do
        rules[i] = read_rule()
    end
    for i = 1, read_number() do
        local steps = read_byte()
        if steps == 0 then
            requests[i] = read_byte()
            if not rules[requests[i]] then
                error('there is no such rule')
            end
            next_key, besides = next_key + 1, besides + (rules[requests[i]].algorithm.beside or 0)
        else
            requests[i] = read_request(steps)
        end
    end
    if next_key + besides ~= #keys + 1 or at ~= #packed + 1 or next_text ~= #args + 1 then
        error('the arguments do not fit the keys')
    end
    return requests
end

function commands.decide(its_keys, its_args)
    keys, args, rules, next_text, next_key, besides = its_keys, its_args, {}, 2, 1, 0
    now_us, ttl_floor_ms = read_time(args[1])
    local with_versions = read_byte() == 1
    local requests = read_requests()
    local reply, count, versions = { now_us }, 1, {}
    next_key = 1
    for _, request in ipairs(requests) do
        if type(request) == 'number' then
            reply[count + 1], reply[count + 2], reply[count + 3], reply[count + 4], reply[count + 5] =
                take_one(rules[request], keys[next_key])
            if with_versions then
                versions[next_key] = next_version(keys[next_key], reply[count + 1], reply[count + 4])
            end
            count, next_key = count + 5, next_key + 1
        else
            decide_carefully(request)
            for _, step in ipairs(request) do
                for i = 1, 5 do
                    reply[count + i] = step[i]
                end
                if with_versions then
                    versions[next_key] = next_version(step.key, step[1], step[4])
                end
                count, next_key = count + 5, next_key + 1
            end
        end
    end
    for i = 1, #versions do
        reply[count + i] = versions[i]
    end
    return reply
end
