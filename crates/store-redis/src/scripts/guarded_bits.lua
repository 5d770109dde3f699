-- Changes a value of bits that begins with a mark, or removes it.
-- ARGV: the mark; put, incr or drop; of a put type, offset and value of each number; of an incr type, offset and by how much, then GET, type and
-- offset of each part that the new number is read in; of a drop marks that do as well.
-- nil: it does not begin with the mark. Else, of a put: 1; of an incr: 1, or nil where the number would leave its range, and the parts; of a drop: 1, or 0
-- where there is nothing.
-- A number of Lua is exact to 53 bits only: a wider one is read in parts.
local call, key, mark, act = redis.call, KEYS[1], ARGV[1], ARGV[2]
local is_marked = call('GETRANGE', key, 0, #mark - 1) == mark
if act == 'incr' then
  if not is_marked then return false end
  local told = call('BITFIELD', key, 'OVERFLOW', 'FAIL', 'INCRBY', unpack(ARGV, 3))
  if told[1] then told[1] = 1 end
  return told
end
if act == 'drop' then
  for i = 3, #ARGV do
    is_marked = is_marked or call('GETRANGE', key, 0, #ARGV[i] - 1) == ARGV[i]
  end
  if is_marked then return call('UNLINK', key) end
  if call('EXISTS', key) == 1 then return false end
  return 0
end
if not is_marked then return false end
local sets = {}
for i = 3, #ARGV, 3 do
  local at = #sets
  sets[at + 1], sets[at + 2], sets[at + 3], sets[at + 4] = 'SET', ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if at >= 4000 or i + 3 > #ARGV then
    call('BITFIELD', key, unpack(sets))
    sets = {}
  end
end
return 1
