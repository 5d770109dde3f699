-- Changes a collection that carries a mark, makes it with the mark alone, or removes it.
-- ARGV: hash, set or sorted; put, remove, turn, make or drop; the mark; of a turn the mark in its place, then names, each with its value but for a
-- set and for a remove; of a make its life in ms, or 0; of a drop marks that do as well.
-- nil: it does not carry the mark. Else: 1 for each entry that was new, or that was there, and 0 for each other; of a make and of a drop 1, or 0
-- where it was made already, or is not there.
local call, key, of, act, mark = redis.call, KEYS[1], ARGV[1], ARGV[2], ARGV[3]
if of == 'hash' and act == 'put' and #ARGV == 5 then
  if call('HEXISTS', key, mark) == 0 then return false end
  return {call('HSET', key, ARGV[4], ARGV[5])}
end
-- One look and one write for all members, as many as Lua takes at once.
if of == 'set' and act == 'put' and #ARGV < 4000 then
  local told, new = call('SMISMEMBER', key, unpack(ARGV, 3)), 0
  if told[1] == 0 then return false end
  for i = 2, #told do
    told[i - 1] = 1 - told[i]
    new = new + told[i - 1]
  end
  told[#told] = nil
  if new > 0 and call('SADD', key, unpack(ARGV, 4)) ~= new then
    -- A member that is new stands there twice.
    local seen = {}
    for i = 4, #ARGV do
      if seen[ARGV[i]] then told[i - 3] = 0 end
      seen[ARGV[i]] = true
    end
  end
  return told
end
local look, add, take = 'HEXISTS', 'HSET', 'HDEL'
if of == 'set' then
  look, add, take = 'SISMEMBER', 'SADD', 'SREM'
elseif of == 'sorted' then
  look, add, take = 'ZSCORE', 'ZADD', 'ZREM'
end
local has = call(look, key, mark)
-- Once something is written, a refusal is not to end the script: it is told with what was written (HALF).
local run = call
local function put(name, value)
  if of == 'set' then return run(add, key, name) end
  if of == 'hash' then return run(add, key, name, value) end
  return run(add, key, value, name)
end
if not has or has == 0 then
  has = false
  if act == 'drop' then
    for i = 4, #ARGV do
      local other = call(look, key, ARGV[i])
      has = has or (other and other ~= 0)
    end
  end
  if not has then
    if act ~= 'make' and act ~= 'drop' or call('EXISTS', key) == 1 then return false end
    if act == 'drop' then return {0} end
    put(mark, '0')
    if ARGV[4] ~= '0' then
      local timed = redis.pcall('PEXPIRE', key, ARGV[4])
      if type(timed) == 'table' then
        -- Without its life it is not to stay: with its one member it is gone.
        local gone = redis.pcall(take, key, mark)
        if type(gone) == 'table' then return redis.error_reply('HALF PEXPIRE ' .. timed.err) end
        return timed
      end
    end
    return {1}
  end
end
if act == 'make' then return {0} end
if act == 'drop' then return {call('UNLINK', key)} end
local told, at = {}, 4
if act == 'remove' then
  for i = at, #ARGV do told[#told + 1] = call(take, key, ARGV[i]) end
  return told
end
if act == 'turn' then
  -- What comes last is refused here, if it is, before anything is written.
  call(take, key, ARGV[4])
  at = 5
end
local step = of == 'set' and 1 or 2
for i = at, #ARGV, step do
  local new = put(ARGV[i], ARGV[i + 1])
  if type(new) == 'table' then return redis.error_reply('HALF ' .. add .. ' ' .. new.err) end
  told[#told + 1], run = new, redis.pcall
end
-- Behind all entries: a turn of which a part is refused leaves the mark that was there. The new one first, or a collection of one mark would go, and its life with it.
if act == 'turn' then
  local turned = put(ARGV[4], '0')
  if type(turned) == 'table' then return redis.error_reply('HALF ' .. add .. ' ' .. turned.err) end
  local gone = redis.pcall(take, key, mark)
  if type(gone) == 'table' then return redis.error_reply('HALF ' .. take .. ' ' .. gone.err) end
end
return told
