-- What jobs hold of the budget: how many are live, and bytes; a live job its worst case, a final one its sound.
--
-- KEYS  live reserved expiring retirements unarchived since          (one slot)
-- ARGV  take   job bytes max_jobs max_bytes owner model
--       retire job ttl_ms bytes owner model     it is final: it holds `bytes` until its keys go, and may be archived
--       hold   job bytes owner model            it is live, whatever the bounds
--       give   job owner                        it is gone, or never was: it holds nothing
--
-- take replies {1 or 0, live jobs, bytes held}; taking or holding what is live changes nothing. retire replies
-- {1 where it was live, bytes that it held}.
local live, reserved, expiring, retirements, unarchived, since = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local verb, job = ARGV[1], ARGV[2]
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local held = redis.call('HGET', reserved, job)
local total = tonumber(redis.call('HGET', reserved, '') or '0')

local was_held = held and tonumber(string.match(held, '(%d+)$')) or 0
local function hold(bytes, owner, model)
  total = total - was_held + bytes
  if owner then
    redis.call('HSET', reserved, job, owner .. '\n' .. model .. '\n' .. bytes)
  else
    redis.call('HDEL', reserved, job)
  end
  if total > 0 then redis.call('HSET', reserved, '', total) else redis.call('HDEL', reserved, '') end
end

-- It is to be archived no more: it lives again, or nothing of it is left.
local function unarchive()
  redis.call('ZREM', unarchived, job)
  redis.call('ZREM', since, job)
end

if verb == 'take' then
  local jobs, bytes = redis.call('ZCARD', live), tonumber(ARGV[3])
  if redis.call('ZSCORE', live, job) then return {1, jobs, total} end
  if jobs >= tonumber(ARGV[4]) or total + bytes > tonumber(ARGV[5]) then return {0, jobs, total} end
  redis.call('ZADD', live, now, job)
  hold(bytes, ARGV[6], ARGV[7])
  return {1, jobs + 1, total}
end

if verb == 'hold' then
  if redis.call('ZADD', live, 'NX', now, job) == 1 then hold(tonumber(ARGV[3]), ARGV[4], ARGV[5]) end
  redis.call('ZREM', expiring, ARGV[4] .. '/' .. job)
  unarchive()
  return {1}
end

local was_live = redis.call('ZREM', live, job)
if verb == 'give' then
  if held then hold(0) end
  redis.call('ZREM', expiring, ARGV[3] .. '/' .. job)
  unarchive()
  return {was_live}
end
if was_live == 1 then
  local bytes = tonumber(ARGV[4])
  if bytes > 0 then hold(bytes, ARGV[5], ARGV[6]) elseif held then hold(0) end
  redis.call('LPUSH', retirements, now)
  redis.call('LTRIM', retirements, 0, 63)
  redis.call('PEXPIRE', retirements, 3600000)
  redis.call('ZADD', unarchived, now, job)
  redis.call('ZADD', since, now, job)
end
redis.call('ZADD', expiring, 'NX', now + tonumber(ARGV[3]), ARGV[5] .. '/' .. job)
return {was_live, was_held}
