-- What the requests in flight of several gateways may come to, under the budgets of one organisation: in one atomic step, by
-- this server's clock.
--
-- KEYS[2i - 1]  of budget i, a hash: `period`, what is `spent` in it, the sum of all that is `held`, and by its name what each holder
--               holds: a request the most it can come to, a gateway what its requests came to and no reading of the database has
-- KEYS[2i]      of budget i, a sorted set: its holders by the moment at which their leases end
-- ARGV[1]       MessagePack: operation (take, put), lease_ms, keep_ms, then of each budget {limit, period, spent as a gateway has read
--               it, holder, amount, holder, amount, ...}; take has one holder
-- Returns       MessagePack: whether it was taken; where not, the number of the budget that has no room, what is spent and held
--
-- What is spent of a period only grows, so of two readings the larger is the later.

local asked = cmsgpack.unpack(ARGV[1])
local operation, lease_ms, keep_ms = asked[1], asked[2], asked[3]

local time = redis.call("TIME")
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function whole(number)
  return string.format("%.0f", number)
end

local function number_of(key, field)
  return tonumber(redis.call("HGET", key, field) or 0)
end

local budgets = {}
for i = 1, #KEYS / 2 do
  local given = asked[3 + i]
  budgets[i] = {
    sums = KEYS[2 * i - 1], leases = KEYS[2 * i], limit = given[1], period = given[2], read = given[3], given = given,
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
  if amount ~= before then redis.call("HINCRBY", budget.sums, "held", whole(amount - before)) end
end

local function end_leases(budget)
  for _, holder in ipairs(redis.call("ZRANGEBYSCORE", budget.leases, "-inf", whole(now))) do hold(budget, holder, 0) end
  local late = "(" .. whole(now + lease_ms)  -- the clock was set back
  for _, holder in ipairs(redis.call("ZRANGEBYSCORE", budget.leases, late, "+inf")) do
    redis.call("ZADD", budget.leases, whole(now + lease_ms), holder)
  end
end

local function learn(budget)
  local period = redis.call("HGET", budget.sums, "period")
  local newer = not period or period < budget.period
  if newer or (period == budget.period and number_of(budget.sums, "spent") < budget.read) then
    redis.call("HSET", budget.sums, "period", budget.period, "spent", whole(budget.read))
  end
end

local function keep(budget)
  redis.call("PEXPIRE", budget.sums, keep_ms)
  redis.call("PEXPIRE", budget.leases, keep_ms)
end

local operations = {}

function operations.take()
  for i, budget in ipairs(budgets) do
    local holder, amount = budget.given[4], budget.given[5]
    local spent = number_of(budget.sums, "spent")
    local held = number_of(budget.sums, "held") - number_of(budget.sums, holder)
    if spent >= budget.limit or spent + held + amount > budget.limit then return { false, i, spent, held } end
  end
  for _, budget in ipairs(budgets) do hold(budget, budget.given[4], budget.given[5]) end
  return { true }
end

function operations.put()
  for _, budget in ipairs(budgets) do
    for i = 4, #budget.given, 2 do hold(budget, budget.given[i], budget.given[i + 1]) end
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
