-- Keep an artefact, or mark it as used, and let the ones longest unused go where there are too many.
--
-- KEYS  uses sizes artefact                                         (one slot)
-- ARGV  name max_bytes max_count prefix [content]                   prefix: of the artefacts' keys
local name, content = ARGV[1], ARGV[5]
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
if content then
  local before = tonumber(redis.call('HGET', KEYS[2], name) or '0')
  redis.call('SET', KEYS[3], content)
  redis.call('HSET', KEYS[2], name, #content)
  redis.call('HINCRBY', KEYS[2], '', #content - before)
end
redis.call('ZADD', KEYS[1], now, name)
while redis.call('ZCARD', KEYS[1]) > tonumber(ARGV[3])
    or tonumber(redis.call('HGET', KEYS[2], '') or '0') > tonumber(ARGV[2]) do
  local oldest = redis.call('ZPOPMIN', KEYS[1])[1]
  if not oldest then break end
  redis.call('DEL', ARGV[4] .. oldest)
  redis.call('HINCRBY', KEYS[2], '', -tonumber(redis.call('HGET', KEYS[2], oldest) or '0'))
  redis.call('HDEL', KEYS[2], oldest)
end
return redis.status_reply('ok')
