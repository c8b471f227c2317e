"""PostgreSQL's SQL for server groups in claims.

Stateless: any thread may call it. It does what ``group_policies.join`` does,
as a part of the statement that makes all claims of a batch (``pg_claim``).

Two statements travel in one round trip and are one transaction. The first
locks the groups' rows. The second is the claim itself: under READ COMMITTED
it sees everything that was committed before it started, so also the members
that another daemon added while this one waited for the lock.
"""

from __future__ import annotations

# Locked in the order of the uuids, as in every transaction.
LOCK = """
    SELECT 1 FROM server_groups WHERE uuid = ANY(CAST(:groups AS text[]))
    ORDER BY uuid FOR UPDATE
"""

# Common table expressions over ``places``, with the columns group_uuid, uuid
# and host: ``joining`` are the instances that are to be members, ``strict``
# the groups of which the policy must hold, and ``seats`` the hosts on which
# these groups' members count. As in ``group_policies``, an instance that
# moves counts on both its hosts under anti-affinity, and otherwise only on
# the host that it is claimed for. Lookups are written so that PostgreSQL uses
# the keys instead of reading whole tables.
SEATS = """
    joining AS MATERIALIZED (
        SELECT group_uuid, uuid, host FROM places
        WHERE group_uuid IS NOT NULL
    ), strict AS MATERIALIZED (
        SELECT uuid, policy = 'anti-affinity' AS apart,
            COALESCE(NULLIF(max_server_per_host, 0), 1) AS most
        FROM server_groups
        WHERE uuid = ANY(CAST(:groups AS text[]))
            AND policy = ANY(CAST(:policies AS text[]))
    ), seats AS (
        SELECT group_uuid, uuid, host FROM joining
        UNION
        SELECT m.group_uuid, m.instance_uuid, present.host
        FROM strict AS g
        CROSS JOIN LATERAL (
            SELECT * FROM server_group_members
            WHERE group_uuid = ANY(ARRAY[g.uuid]) OFFSET 0
        ) AS m
        CROSS JOIN LATERAL (
            SELECT i.host FROM instances AS i
            WHERE i.uuid = ANY(ARRAY[m.instance_uuid])
            UNION ALL
            SELECT v.host FROM moves AS v
            WHERE v.instance_uuid = ANY(ARRAY[m.instance_uuid])
        ) AS present
        WHERE g.apart OR NOT EXISTS (
            SELECT 1 FROM joining AS j
            WHERE j.group_uuid = m.group_uuid AND j.uuid = m.instance_uuid
        )
    ),
"""

# Whether every strict policy holds once all are members. A group that came or
# changed hands since the hosts were read is not joined: nobody checked whose
# it is.
MAY_JOIN = """
    NOT EXISTS (
        SELECT 1 FROM server_groups AS g JOIN unnest(
            CAST(:groups AS text[]), CAST(:owners AS text[])
        ) AS o(uuid, owner) ON g.uuid = o.uuid
        WHERE COALESCE(g.project_id, '') IS DISTINCT FROM o.owner
    ) AND NOT EXISTS (
        SELECT 1 FROM seats AS s JOIN strict AS g ON g.uuid = s.group_uuid
        WHERE g.apart GROUP BY s.group_uuid, s.host, g.most
        HAVING count(*) > g.most
    ) AND NOT EXISTS (
        SELECT 1 FROM seats AS s JOIN strict AS g ON g.uuid = s.group_uuid
        WHERE NOT g.apart GROUP BY s.group_uuid
        HAVING count(DISTINCT s.host) > 1
    )
"""

# Adds instances to groups that exist and that they are not members of.
JOINED = """
    joined AS (
        INSERT INTO server_group_members (group_uuid, instance_uuid)
        SELECT j.group_uuid, j.uuid FROM joining AS j
        WHERE (SELECT yes FROM enough) = 1
            AND EXISTS (
                SELECT 1 FROM server_groups AS g
                WHERE g.uuid = ANY(ARRAY[j.group_uuid])
            )
        ON CONFLICT DO NOTHING
        RETURNING group_uuid
    ),
"""

# The change record, with the groups that got members.
TOUCHED = """
    CASE WHEN EXISTS (SELECT 1 FROM joined) THEN CAST(
        CAST(CAST(:touched AS text) AS jsonb) || jsonb_build_object(
            'groups', (SELECT jsonb_agg(DISTINCT group_uuid) FROM joined)
        ) AS text) ELSE CAST(:touched AS text) END
"""
