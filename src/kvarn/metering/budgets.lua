-- What the requests in flight of several gateways may come to, under the budgets of one organisation: in one atomic step, by
-- this server's clock.
--
-- KEYS[3i - 2]  of budget i, what is spent in the caller's period, by whose name the key is called: gateways whose clocks are in
--               different periods do not disturb each other
-- KEYS[3i - 1]  of budget i, a hash: the sum of all that is `held`, and by its name what each holder holds: a request the most it can come to, a
--               gateway (gw_...) what its requests came to and no reading of the database has. Of no period: what is in flight
--               when one ends counts in the next
-- KEYS[3i]      of budget i, a sorted set: its holders by the moment at which their leases end
-- ARGV[1]       MessagePack: operation (take, put), lease_ms, keep_ms, then of each budget {limit, spent as a gateway has read it,
--               holder, amount, holder, amount, ...}; take has one holder
-- Returns       MessagePack: of take whether it was taken; where not, the number of the budget that has no room, and what is spent
--
-- What is spent of a period only grows, so of two readings the larger is the later.

local request = cmsgpack.unpack(ARGV[1])
local operation, lease_ms, keep_ms = unpack(request, 1, 3)

local time = redis.call("TIME")
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function whole(number)
  return string.format("%.0f", number)
end

local function number_of(key, field)
  return tonumber(redis.call("HGET", key, field) or 0)
end

local budgets = {}
for i = 1, #KEYS / 3 do
  local given = request[3 + i]
  budgets[i] = {
    of_period = KEYS[3 * i - 2], sums = KEYS[3 * i - 1], leases = KEYS[3 * i], limit = given[1], read = given[2], given = given,
  }
end

local function hold(budget, holder, amount)
  local before = number_of(budget.sums, holder)
  if amount > 0 then
    redis.call("HSET", budget.sums, holder, whole(amount))
    redis.call("ZADD", budget.leases, whole(now + lease_ms), holder)
  else
    redis.call("HDEL", budget.sums, holder)
    redis.call("ZREM", budget.leases, holder)
  end
  if amount ~= before then
    redis.call("HINCRBY", budget.sums, "held", whole(amount - before))
  end
end

local function end_leases(budget)
  for _, holder in ipairs(redis.call("ZRANGEBYSCORE", budget.leases, "-inf", whole(now))) do hold(budget, holder, 0) end
  local late = "(" .. whole(now + lease_ms)  -- the clock was set back
  for _, holder in ipairs(redis.call("ZRANGEBYSCORE", budget.leases, late, "+inf")) do
    redis.call("ZADD", budget.leases, whole(now + lease_ms), holder)
  end
end

local function learn(budget)
  budget.spent = math.max(tonumber(redis.call("GET", budget.of_period)) or 0, budget.read)
  redis.call("SET", budget.of_period, whole(budget.spent), "PX", keep_ms)
end

local function keep(budget)
  redis.call("PEXPIRE", budget.sums, keep_ms)
  redis.call("PEXPIRE", budget.leases, keep_ms)
end

local operations = {}

function operations.take()
  for i, budget in ipairs(budgets) do
    local holder, amount = budget.given[3], budget.given[4]
    local held = number_of(budget.sums, "held") - number_of(budget.sums, holder)
    if budget.spent >= budget.limit or budget.spent + held + amount > budget.limit then
      return { false, i, budget.spent }
    end
  end
  for _, budget in ipairs(budgets) do hold(budget, budget.given[3], budget.given[4]) end
  return { true }
end

function operations.put()
  for _, budget in ipairs(budgets) do
    for i = 3, #budget.given, 2 do hold(budget, budget.given[i], budget.given[i + 1]) end
  end
  return { true }
end

for _, budget in ipairs(budgets) do
  end_leases(budget)
  learn(budget)
end
local reply = operations[operation]()
for _, budget in ipairs(budgets) do keep(budget) end
return cmsgpack.pack(reply)
