-- beat: prefix, node, token, name, milliseconds of the lease.
-- Takes or renews a lease. Answers whether it was held, some sessions of this node that others have ended, if there are any,
-- and, of the part that follows, the nodes; or nothing when another process has the lease.

-- Entries of the mail that are given at once, about.
local MAIL_PAGE = 100
-- Steps through the mail: a hash of as many entries as are kept has room for 16,384, and a step goes by a thousand free places.
local MAIL_STEPS_MAX = 100

local lease = prefix .. 'lease:' .. ARGV[2]
local was_held = lives(ARGV[2])
if was_held and redis.call('GET', lease) ~= ARGV[3] then return {} end
-- A Redis without room refuses the first write of a script if that may take some, and none that follow: so the first takes
-- none.
if was_held then
  redis.call('PEXPIRE', lease, ARGV[5])
else
  redis.call('DEL', lease)
  redis.call('SET', lease, ARGV[3], 'PX', ARGV[5])
end
redis.call('HSET', prefix .. 'nodes', ARGV[2], ARGV[4])

-- What was read is removed before the next heartbeat, so that the way through the mail begins with places that are free.
local mail, cursor = {}, '0'
for _ = 1, MAIL_STEPS_MAX do
  local page = redis.call('HSCAN', prefix .. 'mail:' .. ARGV[2], cursor, 'COUNT', MAIL_PAGE)
  cursor = page[1]
  for i = 1, #page[2] do mail[#mail + 1] = page[2][i] end
  if cursor == '0' or #mail >= 2 * MAIL_PAGE then break end
end

