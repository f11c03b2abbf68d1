-- Webhooks that are owed: one a job, from before it is accepted until it has been told, or given up.
--
-- KEYS  live due owed messages counts                                (one slot)
-- ARGV  owe   job model                       a job is about to be accepted that wants its end told
--       claim ttl_ms most model...            take what is due, of jobs of these models that are not live
--       again job claimed pause_ms message    it could not be told: once more, after a pause
--       done  job claimed outcome             it was told, or is given up for what failed; "": nothing was to be told
--       drop  job                             the job is forgotten
--
-- claim replies {claimed, job, attempt, job, attempt, ...}: whoever claims owns the job's telling until `claimed` (ms),
-- and then the next one does. again and done reply 1, or 0 where another has claimed it since; they then change nothing.
local live, due, owed, messages, counts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local verb, job = ARGV[1], ARGV[2]
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)

local function drop()
  redis.call('ZREM', due, job)
  redis.call('HDEL', owed, job)
  redis.call('HDEL', messages, job)
end

if verb == 'owe' then
  redis.call('HSET', owed, job, '0\n' .. ARGV[3])
  redis.call('HDEL', messages, job)
  redis.call('ZADD', due, now, job)
  return {1}
end

if verb == 'claim' then
  local claimed, most, models = now + tonumber(ARGV[2]), tonumber(ARGV[3]), {}
  for i = 4, #ARGV do models[ARGV[i]] = true end
  local reply = {claimed}
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', now)) do
    if #reply > 2 * most - 1 then break end
    local attempts, model = string.match(redis.call('HGET', owed, name) or '', '^(%d+)\n(.*)$')
    if models[model] and not redis.call('ZSCORE', live, name) then
      redis.call('HSET', owed, name, (attempts + 1) .. '\n' .. model)
      redis.call('ZADD', due, claimed, name)
      reply[#reply + 1] = name
      reply[#reply + 1] = attempts + 1
    end
  end
  return reply
end

if verb == 'drop' then
  drop()
  return {1}
end

if tonumber(redis.call('ZSCORE', due, job) or '0') ~= tonumber(ARGV[3]) then return {0} end
if verb == 'done' then
  drop()
  if ARGV[4] == 'given_up' then redis.call('HINCRBY', counts, 'failed', 1) end  -- its last attempt
  if ARGV[4] ~= '' then redis.call('HINCRBY', counts, ARGV[4], 1) end
  return {1}
end
redis.call('HINCRBY', counts, 'failed', 1)
redis.call('ZADD', due, now + tonumber(ARGV[4]), job)
if ARGV[5] ~= '' then redis.call('HSET', messages, job, ARGV[5]) end
return {1}
