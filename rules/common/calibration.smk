# Inputs and parameters of the rules that calibrate the cost model, from escala/workflow/.

from escala.analysis.cost_model.works import plan_works, plans
from escala.workflow.calibrations import Calibrations, times_of_tables

CALIBRATIONS = Calibrations(STUDY, has_links)
calibrating, calibrating_files = CALIBRATIONS.experiment, CALIBRATIONS.files
model_settings, first_split = CALIBRATIONS.model_settings, CALIBRATIONS.split
