-- Keep an artefact, or mark it as used, and let the ones longest unused go where there are too many.
-- KEYS: uses, sizes, the artefact. ARGV: its name, time (ms), bytes kept at most, count kept at most, prefix of the
-- artefacts' keys, and the artefact where it is new.
local name, content = ARGV[1], ARGV[6]
if content then
  local before = tonumber(redis.call('HGET', KEYS[2], name) or '0')
  redis.call('SET', KEYS[3], content)
  redis.call('HSET', KEYS[2], name, #content)
  redis.call('HINCRBY', KEYS[2], '', #content - before)
end
redis.call('ZADD', KEYS[1], ARGV[2], name)
while redis.call('ZCARD', KEYS[1]) > tonumber(ARGV[4])
    or tonumber(redis.call('HGET', KEYS[2], '') or '0') > tonumber(ARGV[3]) do
  local oldest = redis.call('ZPOPMIN', KEYS[1])[1]
  if not oldest then break end
  redis.call('DEL', ARGV[5] .. oldest)
  redis.call('HINCRBY', KEYS[2], '', -tonumber(redis.call('HGET', KEYS[2], oldest) or '0'))
  redis.call('HDEL', KEYS[2], oldest)
end
return redis.status_reply('ok')
