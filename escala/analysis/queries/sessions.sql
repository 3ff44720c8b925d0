-- What each session measured, when and where: timing runs that ended ok, runs that failed, probe
-- runs, and the hours that all of them took.
SELECT
    session,
    min(started) AS started,
    string_agg(DISTINCT experiment, ', ' ORDER BY experiment) AS experiments,
    string_agg(DISTINCT hosts, ', ' ORDER BY hosts) AS hosts,
    count(*) FILTER (status = 'ok' AND instrument IS NULL) AS measurements,
    count(*) FILTER (status <> 'ok') AS failed,
    count(*) FILTER (status = 'ok' AND instrument IS NOT NULL) AS probe_runs,
    round(sum(wall_seconds) / 3600, 2) AS hours
FROM runs
GROUP BY session
ORDER BY started, session
