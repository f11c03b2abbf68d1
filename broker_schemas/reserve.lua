-- What live jobs hold of the budget: how many there are, and the bytes of their worst cases.
--
-- KEYS  live reserved                                                (one slot)
-- ARGV  take job now_ms bytes max_jobs max_bytes owner model | give job
--
-- take replies {1 or 0, jobs, bytes}; taking again what is held is a yes and changes nothing.
local live, reserved = KEYS[1], KEYS[2]
local verb, job = ARGV[1], ARGV[2]
local held = redis.call('HGET', reserved, job)
local jobs = redis.call('ZCARD', live)
local total = tonumber(redis.call('HGET', reserved, '') or '0')
if verb == 'take' then
  local bytes = tonumber(ARGV[4])
  if held then return {1, jobs, total} end
  if jobs >= tonumber(ARGV[5]) or total + bytes > tonumber(ARGV[6]) then return {0, jobs, total} end
  redis.call('ZADD', live, ARGV[3], job)
  redis.call('HSET', reserved, job, ARGV[7] .. '\n' .. ARGV[8] .. '\n' .. ARGV[4], '', total + bytes)
  return {1, jobs + 1, total + bytes}
end
redis.call('ZREM', live, job)
if held then
  local left = total - tonumber(string.match(held, '(%d+)$'))
  redis.call('HDEL', reserved, job)
  if left <= 0 then redis.call('HDEL', reserved, '') else redis.call('HSET', reserved, '', left) end
end
return {held and 1 or 0, redis.call('ZCARD', live), total}
