-- The rule of counts.py (see there) for several gateways: in one atomic step, by this server's clock.
--
-- ARGV[1]  MessagePack: operation (reserve, renew, settle), slot_ms, window, lease_ms, keep_ms, id of the work, tokens reserved,
--          tokens used, whether a settlement gives the request back too, then of each limit {kind, maximum, amount}, of a
--          budget {kind, maximum, amount, spent, gateway, unread}
-- KEYS[1]  mark of the request: {slot, charged, expires_ms}
-- KEYS     of each limit in turn:
--          requests, tokens     one: the window {slot, count, slot, count, ...}, oldest first
--          concurrency, budget  two: a hash of what each holder holds and their sum, `held`; a sorted set of the holders by
--                               the moment at which their leases end
--          budget               one more: what is spent in the caller's period, by whose name it is called: gateways whose
--                               clocks are in different periods do not disturb each other
-- Returns  MessagePack: of reserve {admitted, {{used, wait_ms, reset_ms}, ...}}

local NEVER, END_GUESS_MS = -1, 1000
local request = cmsgpack.unpack(ARGV[1])
local operation, slot_ms, window, lease_ms, keep_ms, work, reserved, used, whole = unpack(request, 1, 9)

local time = redis.call("TIME")
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local slot = math.floor(now / slot_ms)

local limits, windows, next_key = {}, false, 2
local function take_key()
  next_key = next_key + 1
  return KEYS[next_key - 1]
end
for i = 10, #request do
  local kind, maximum, amount, spent, gateway, unread = unpack(request[i], 1, 6)
  local limit = { kind = kind, maximum = maximum, amount = amount, read = spent, gateway = gateway, unread = unread, key = take_key() }
  limit.is_window = kind == "requests" or kind == "tokens"
  if limit.is_window then windows = true else limit.leases = take_key() end
  if kind == "budget" then limit.period = take_key() end
  limits[i - 9] = limit
end

local function decimal(number)
  return string.format("%.0f", number)
end

local function end_ms(of_slot)
  return (of_slot + window + 1) * slot_ms
end

-- The charges that still count, and their sum. Unlike a process's, a server's clock may be set back: what seems to be
-- charged in the future counts as charged now, or it would count for as long as the clock was set back.
local function read_window(key)
  local packed = redis.call("GET", key)
  local kept = packed and cmsgpack.unpack(packed) or {}
  local charges, size, total = {}, 0, 0
  for i = 1, #kept, 2 do
    local dated, count = math.min(kept[i], slot), kept[i + 1]
    if dated >= slot - window then
      if size > 0 and charges[size - 1] == dated then
        charges[size] = charges[size] + count
      else
        charges[size + 1], charges[size + 2] = dated, count
        size = size + 2
      end
      total = total + count
    end
  end
  return charges, total
end

local function add_to_window(key, charges, of_slot, amount)
  local place = #charges + 1
  for i = 1, #charges, 2 do
    if charges[i] == of_slot then place = i end
  end
  local count = math.max(0, (charges[place + 1] or 0) + amount)
  if count > 0 then
    charges[place], charges[place + 1] = of_slot, count
  elseif place < #charges then
    table.remove(charges, place)
    table.remove(charges, place)
  end
  if #charges > 0 then
    redis.call("SET", key, cmsgpack.pack(charges), "PX", (window + 1) * slot_ms)
  else
    redis.call("DEL", key)
  end
end

local function held_by(limit, holder)
  return tonumber(redis.call("HGET", limit.key, holder) or 0)
end

local function hold(limit, holder, amount)
  local before = held_by(limit, holder)
  if amount > 0 then
    redis.call("HSET", limit.key, holder, decimal(amount))
    redis.call("ZADD", limit.leases, decimal(now + lease_ms), holder)
    redis.call("PEXPIRE", limit.leases, lease_ms)
  elseif before > 0 then
    redis.call("HDEL", limit.key, holder)
    redis.call("ZREM", limit.leases, holder)
  end
  if amount ~= before then redis.call("HINCRBY", limit.key, "held", decimal(amount - before)) end
  if amount > 0 then redis.call("PEXPIRE", limit.key, lease_ms) end
end

-- Ends leases, and takes over what the caller knows of a budget.
local function read_hold(limit)
  for _, holder in ipairs(redis.call("ZRANGEBYSCORE", limit.leases, "-inf", decimal(now))) do hold(limit, holder, 0) end
  local latest = decimal(now + lease_ms)
  for _, holder in ipairs(redis.call("ZRANGEBYSCORE", limit.leases, "(" .. latest, "+inf")) do  -- the clock was set back
    redis.call("ZADD", limit.leases, latest, holder)
  end
  limit.spent, limit.certain = 0, 0
  if limit.period then
    limit.spent = math.max(tonumber(redis.call("GET", limit.period)) or 0, limit.read)
    limit.certain = math.max(limit.spent, limit.read + limit.unread)
    redis.call("SET", limit.period, decimal(limit.spent), "PX", keep_ms)
    if operation ~= "reserve" then hold(limit, limit.gateway, limit.unread) end  -- updates are sent in order
  end
end

local function usage_of_hold(limit)
  local held, wait = held_by(limit, "held"), 0
  if limit.certain >= limit.maximum or limit.certain + limit.amount > limit.maximum then
    wait = NEVER
  elseif limit.spent + held + limit.amount > limit.maximum then
    wait = END_GUESS_MS
  end
  return { limit.period and limit.certain or held, wait, 0 }
end

local function usage_of_window(limit)
  local charges, total = read_window(limit.key)
  local excess, wait = total + limit.amount - limit.maximum, 0
  if excess > 0 then
    wait = NEVER
    for i = 1, #charges, 2 do
      excess = excess - charges[i + 1]
      if excess <= 0 then
        wait = end_ms(charges[i]) - now
        break
      end
    end
  end
  limit.charges = charges
  return { total, wait, #charges > 0 and end_ms(charges[#charges - 1]) - now or 0 }
end

local function charge(limit, usage)
  if limit.is_window then
    add_to_window(limit.key, limit.charges, slot, limit.amount)
    return { usage[1] + limit.amount, 0, end_ms(slot) - now }
  end
  hold(limit, work, limit.amount)
  return { usage[1] + (limit.period and 0 or limit.amount), 0, 0 }
end

local function read_mark()
  local packed = windows and redis.call("GET", KEYS[1])
  local mark = packed and cmsgpack.unpack(packed)
  return mark and mark[3] > now and mark or nil
end

local function write_mark(of_slot, charged)
  if windows then
    redis.call("SET", KEYS[1], cmsgpack.pack({ of_slot, charged, now + lease_ms }), "PX", lease_ms)
  end
end

local function correct(kind, of_slot, amount)
  if amount == 0 then return end
  for _, limit in ipairs(limits) do
    if limit.kind == kind then add_to_window(limit.key, read_window(limit.key), of_slot, amount) end
  end
end

local operations = {}

function operations.reserve()
  local usages, admitted = {}, true
  for i, limit in ipairs(limits) do
    usages[i] = limit.is_window and usage_of_window(limit) or usage_of_hold(limit)
    admitted = admitted and usages[i][2] == 0
  end
  if admitted then
    for i, limit in ipairs(limits) do usages[i] = charge(limit, usages[i]) end
    write_mark(slot, reserved)
  end
  return { admitted, usages }
end

function operations.renew()
  local mark = read_mark()
  local of_slot, charged = slot, used
  if mark then of_slot, charged = mark[1], mark[2] end
  correct("tokens", slot, math.max(0, used - charged))
  write_mark(of_slot, math.max(charged, used))
  for _, limit in ipairs(limits) do
    if not limit.is_window then hold(limit, work, limit.amount) end
  end
  return true
end

function operations.settle()
  for _, limit in ipairs(limits) do
    if not limit.is_window then hold(limit, work, 0) end
  end
  local mark = read_mark()
  if not mark then return true end
  redis.call("DEL", KEYS[1])
  local more = used - mark[2]
  correct("tokens", more > 0 and slot or mark[1], more)
  if whole then correct("requests", mark[1], -1) end
  return true
end

for _, limit in ipairs(limits) do
  if not limit.is_window then read_hold(limit) end
end
return cmsgpack.pack(operations[operation]())
