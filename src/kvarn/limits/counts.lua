-- The counts of several gateways: the algorithm of local.py (see there), in one atomic step, by this server's clock.
--
-- KEYS[1]    mark of the request
-- KEYS[i]    count of the limit i - 1
-- ARGV[1]    MessagePack: operation (take, renew, settle), slot_ms, window, lease_ms, id of the work, tokens reserved,
--            tokens used, whether a settlement gives the request back too, then kind and limit of each limit
-- Returns    MessagePack: whether a reservation was admitted, or the request was known; for a reservation then used, wait_ms and
--            reset_ms of each limit
--
-- A window is kept as {slot, count, slot, count, ...}, oldest first; running requests as a sorted set by moment of
-- expiry; a mark as {slot, charged, expires_ms}.

local NEVER, END_GUESS_MS = -1, 1000
local request = cmsgpack.unpack(ARGV[1])
local operation, slot_ms, window, lease_ms, work, reserved, used, whole = unpack(request, 1, 8)

local time = redis.call("TIME")
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local slot = math.floor(now / slot_ms)

local limits = {}
for i = 2, #KEYS do
  local kind = request[5 + 2 * i]
  limits[i - 1] = { key = KEYS[i], kind = kind, maximum = request[6 + 2 * i], amount = kind == "tokens" and reserved or 1 }
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

local function running(key)
  redis.call("ZREMRANGEBYSCORE", key, "-inf", now)
  redis.call("ZREMRANGEBYSCORE", key, "(" .. string.format("%d", now + lease_ms), "+inf")  -- the clock was set back
  return redis.call("ZCARD", key)
end

local function hold_place(key)
  redis.call("ZADD", key, now + lease_ms, work)
  redis.call("PEXPIRE", key, lease_ms)
end

local function read(limit)
  if limit.kind == "concurrency" then
    local count = running(limit.key)
    local wait = count < limit.maximum and 0 or limit.maximum > 0 and END_GUESS_MS or NEVER
    return { count, wait, 0 }
  end
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
  return { total, wait, #charges > 0 and end_ms(charges[#charges - 1]) - now or 0, charges }
end

local function charge(limit, usage)
  if limit.kind == "concurrency" then
    hold_place(limit.key)
    return { usage[1] + 1, 0, 0 }
  end
  add_to_window(limit.key, usage[4], slot, limit.amount)
  return { usage[1] + limit.amount, 0, end_ms(slot) - now }
end

local function read_mark()
  local packed = redis.call("GET", KEYS[1])
  local mark = packed and cmsgpack.unpack(packed)
  return mark and mark[3] > now and mark or nil
end

local function write_mark(of_slot, charged)
  redis.call("SET", KEYS[1], cmsgpack.pack({ of_slot, charged, now + lease_ms }), "PX", lease_ms)
end

local function correct(kind, of_slot, amount)
  if amount == 0 then return end
  for _, limit in ipairs(limits) do
    if limit.kind == kind then add_to_window(limit.key, read_window(limit.key), of_slot, amount) end
  end
end

local operations = {}

function operations.take()
  local usages, admitted = {}, true
  for i, limit in ipairs(limits) do
    usages[i] = read(limit)
    admitted = admitted and usages[i][2] == 0
  end
  if admitted then
    for i, limit in ipairs(limits) do usages[i] = charge(limit, usages[i]) end
    write_mark(slot, reserved)
  end
  local reply = { admitted }
  for _, usage in ipairs(usages) do
    for i = 1, 3 do reply[#reply + 1] = usage[i] end
  end
  return reply
end

function operations.renew()
  local mark = read_mark()
  local of_slot, charged = slot, used
  if mark then of_slot, charged = mark[1], mark[2] end
  correct("tokens", slot, math.max(0, used - charged))
  write_mark(of_slot, math.max(charged, used))
  for _, limit in ipairs(limits) do
    if limit.kind == "concurrency" then hold_place(limit.key) end
  end
  return { mark ~= nil }
end

function operations.settle()
  for _, limit in ipairs(limits) do
    if limit.kind == "concurrency" then redis.call("ZREM", limit.key, work) end
  end
  local mark = read_mark()
  if not mark then return { false } end
  redis.call("DEL", KEYS[1])
  local more = used - mark[2]
  correct("tokens", more > 0 and slot or mark[1], more)
  if whole then correct("requests", mark[1], -1) end
  return { true }
end

return cmsgpack.pack(operations[operation]())
